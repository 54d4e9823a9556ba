// Prints the vector of each text. To be run where the folder protos is:
//   node encode.mjs localhost:50051 "some text" "some more"
import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const [address, ...texts] = process.argv.slice(2);
const definition = loadSync("seqenc/v1/encoder.proto", { includeDirs: ["protos"] });
const { EncoderService } = loadPackageDefinition(definition).seqenc.v1;
const client = new EncoderService(address, credentials.createInsecure());

client.Encode({ inputs: texts.map((text) => ({ text })) }, (error, response) => {
  client.close();
  if (error) {
    console.error(error.message);
    process.exitCode = 1;
    return;
  }
  const { shape, data } = response.embeddings; // float32, row after row
  const [rows, width] = shape;
  for (let row = 0; row < rows; row++) {
    const vector = Array.from({ length: width }, (_, i) => data.readFloatLE(4 * (row * width + i)));
    console.log(JSON.stringify(vector));
  }
});
