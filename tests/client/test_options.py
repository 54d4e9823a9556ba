import pytest

from seqenc.options import build_options, build_tokenize_options
from seqenc.v1 import encoder_pb2 as pb


def test_no_options_leave_every_choice_to_the_server():
    assert build_options() == pb.EncodeOptions()


def test_every_option_reaches_its_field():
    options = build_options(
        pooling="cls",
        normalize=False,
        dimensions=8,
        embedding_type="ubinary",
        truncation="left",
        max_tokens=0,
        prompt_name="query",
        prompt="p",
        token_embeddings=True,
        tokens=True,
        attention={"layers": [-1], "heads": [0, 2], "reduction": "mean_heads", "type": "float16"},
        on_error="per_input",
        priority=-2,
    )
    assert options == pb.EncodeOptions(
        pooling=pb.POOLING_CLS,
        normalize=False,
        dimensions=8,
        embedding_type=pb.DATA_TYPE_UBINARY,
        truncation=pb.TRUNCATION_LEFT,
        max_tokens=0,
        prompt_name="query",
        prompt="p",
        token_embeddings=True,
        tokens=True,
        attention=pb.AttentionOptions(
            layers=[-1],
            heads=[0, 2],
            reduction=pb.ATTENTION_REDUCTION_MEAN_HEADS,
            type=pb.DATA_TYPE_FLOAT16,
        ),
        on_error=pb.ON_ERROR_PER_INPUT,
        priority=-2,
    )
    assert options.HasField("normalize")
    assert options.HasField("max_tokens")


@pytest.mark.parametrize(("attention", "present"), [(None, False), (False, False), (True, True), ({}, True)])
def test_attention_is_asked_for_by_true_or_its_options(attention, present):
    assert build_options(attention=attention).HasField("attention") is present


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"pooling": "sum"}, "pooling='sum': expected one of none, cls, mean, max, last"),
        ({"pooling": "unspecified"}, "expected one of"),
        ({"truncation": "both"}, "error, right, left"),
        ({"embedding_type": "float64"}, "float32, float16, bfloat16, int8, ubinary"),
        ({"on_error": "ignore"}, "fail_call, per_input"),
        ({"attention": {"reduction": "max"}}, "attention reduction='max': .* none, mean_heads, rollout"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(option, message):
    with pytest.raises(ValueError, match=message):
        build_options(**option)


@pytest.mark.parametrize("option", [{"poolng": "mean"}, {"attention": {"layer": 1}}])
def test_an_unknown_option_is_refused(option):
    with pytest.raises(TypeError, match="unexpected keyword"):
        build_options(**option)


def test_tokenize_has_fewer_options():
    assert build_tokenize_options(max_tokens=7) == pb.EncodeOptions(max_tokens=7)
    with pytest.raises(TypeError, match="unexpected keyword 'pooling'"):
        build_tokenize_options(pooling="cls")


def test_limits_are_the_servers_to_judge():
    assert build_options(dimensions=-1, priority=9) == pb.EncodeOptions(dimensions=-1, priority=9)
