// Writes src/api/schema.d.ts from an OpenAPI document on standard input (`make web-types`).
import { writeFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import openapiTS, { astToString } from "openapi-typescript";

const document = JSON.parse(await text(process.stdin));
const head = "// Made by `make web-types` from the OpenAPI document.\n\n";
writeFileSync(new URL("../src/api/schema.d.ts", import.meta.url), head + astToString(await openapiTS(document)));
