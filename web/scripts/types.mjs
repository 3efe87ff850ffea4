// Types for TypeScript on standard output, from an OpenAPI document on standard input (`make web-types`).
import { text } from "node:stream/consumers";
import openapiTS, { astToString } from "openapi-typescript";

process.stdout.write(astToString(await openapiTS(JSON.parse(await text(process.stdin)))));
