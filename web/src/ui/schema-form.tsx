// A form made from a JSON Schema. The server validates: each of its problems is shown at the field of its path.
// What the form cannot express is edited as JSON.
import { useId, useMemo, useState, type ReactNode } from "react";
import type { ProblemItem } from "../api/client";
import { Button, IconButton } from "./controls";
import { Editor } from "./editor";
import { Icon } from "./icons";
import css from "./schema-form.module.css";

type Json = unknown;
type Schema = Record<string, unknown>;

const DEPTH_MAX = 8;

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const step = (key: string | number): string => String(key).replaceAll("~", "~0").replaceAll("/", "~1");

/** Follow `$ref` within the document, merge `allOf`, and take the one alternative of `T or null`. */
function resolved(schema: unknown, root: Schema, depth = 0): Schema {
  if (!isObject(schema) || depth > DEPTH_MAX) return {};
  if (typeof schema.$ref === "string") {
    if (!schema.$ref.startsWith("#/")) return { ...schema, $raw: true };
    let target: unknown = root;
    for (const part of schema.$ref.slice(2).split("/")) {
      const key = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
      target = isObject(target) ? target[key] : undefined;
    }
    const { $ref: _, ...rest } = schema;
    return { ...resolved(target, root, depth + 1), ...rest };
  }
  if (Array.isArray(schema.allOf)) {
    const { allOf, ...rest } = schema;
    return [...allOf, rest].map((each) => resolved(each, root, depth + 1)).reduce(merged, {});
  }
  for (const word of ["anyOf", "oneOf"] as const) {
    const options = schema[word];
    if (!Array.isArray(options)) continue;
    const { [word]: _, ...rest } = schema;
    if (options.every((each) => isObject(each) && "const" in each)) {
      return { ...rest, enum: options.map((each) => each.const), $titles: options.map((each) => each.title) };
    }
    const real = options.filter((each) => !(isObject(each) && each.type === "null"));
    if (real.length === 1) return { ...resolved(real[0], root, depth + 1), ...rest };
    return { ...rest, $raw: true };
  }
  return schema;
}

function merged(left: Schema, right: Schema): Schema {
  const both: Schema = { ...left, ...right };
  if (isObject(left.properties) && isObject(right.properties)) both.properties = { ...left.properties, ...right.properties };
  if (Array.isArray(left.required) && Array.isArray(right.required)) both.required = [...left.required, ...right.required];
  return both;
}

type Kind = "object" | "array" | "enum" | "string" | "number" | "integer" | "boolean" | "raw";

function kindOf(schema: Schema): Kind {
  if (schema.$raw) return "raw";
  if (Array.isArray(schema.enum) || "const" in schema) return "enum";
  const types = (Array.isArray(schema.type) ? schema.type : [schema.type]).filter((each) => each !== "null");
  const type = types.length === 1 ? types[0] : undefined;
  if (type === "object" || (type === undefined && isObject(schema.properties))) {
    return isObject(schema.properties) && Object.keys(schema.properties).length > 0 ? "object" : "raw";
  }
  if (type === "array") return isObject(schema.items) ? "array" : "raw";
  if (type === "string" || type === "number" || type === "integer" || type === "boolean") return type;
  return "raw";
}

/** Whether a form says more than a text would. */
export function canShow(schema: unknown): boolean {
  return isObject(schema) && kindOf(resolved(schema, schema)) !== "raw";
}

/** What a form begins with: the defaults of its schema. */
export function initialValue(schema: unknown, root: unknown = schema): Json {
  if (!isObject(schema) || !isObject(root)) return undefined;
  const known = resolved(schema, root);
  if ("default" in known) return structuredClone(known.default);
  if ("const" in known) return known.const;
  if (kindOf(known) !== "object") return undefined;
  const found: Record<string, Json> = {};
  for (const [key, each] of Object.entries(known.properties as Schema)) {
    const value = initialValue(each, root);
    const required = Array.isArray(known.required) && known.required.includes(key);
    if (value !== undefined && (required || !isObject(value) || Object.keys(value).length > 0)) found[key] = value;
  }
  return found;
}

const MISSING = /^the key "(.+)" is missing$/s;

/** Where a problem belongs: the API names the object in which a key is missing. */
function placeOf(problem: ProblemItem): string {
  const missing = MISSING.exec(problem.message);
  return missing?.[1] === undefined ? problem.path : `${problem.path}/${step(missing[1])}`;
}

interface FieldProps {
  schema: Schema;
  root: Schema;
  value: Json;
  onChange: (value: Json) => void;
  path: string;
  /** The key in the object, or a name for an item. */
  name: string;
  required: boolean;
  problems: readonly ProblemItem[];
  disabled: boolean;
  depth: number;
}

function Problems({ problems, id }: { problems: readonly ProblemItem[]; id?: string }) {
  if (problems.length === 0) return null;
  return (
    <div id={id}>
      {problems.slice(0, 5).map((each, index) => (
        <p key={index} className={css.problem}>
          <Icon name="warning" size={14} />
          <span>
            {MISSING.test(each.message) ? "Please fill this in." : `${each.message}${each.hint ? ` (${each.hint})` : ""}`}
          </span>
        </p>
      ))}
    </div>
  );
}

const words = (key: string): string => {
  const text = key.replaceAll(/[_-]+/g, " ").trim();
  return text ? text[0]?.toUpperCase() + text.slice(1) : key;
};

function titleOf(schema: Schema, name: string): string {
  return typeof schema.title === "string" && schema.title ? schema.title : words(name);
}

const INPUTS: Record<string, string> = { date: "date", time: "time", email: "email", uri: "url", url: "url", password: "password" };

function limits(schema: Schema): string {
  const said: string[] = [];
  const between = (least: unknown, most: unknown, unit: string) => {
    if (typeof least === "number" && typeof most === "number") said.push(`${least} to ${most}${unit}`);
    else if (typeof least === "number" && (unit ? least > 1 : true)) said.push(`at least ${least}${unit}`);
    else if (typeof most === "number") said.push(`at most ${most}${unit}`);
  };
  between(schema.minimum, schema.maximum, "");
  between(schema.minLength, schema.maxLength, " characters");
  if (typeof schema.format === "string" && !(schema.format in INPUTS)) said.push(schema.format);
  return said.join(", ");
}

function Field(props: FieldProps): ReactNode {
  const { schema: raw, root, path, name, required, disabled, depth } = props;
  const id = useId();
  const schema = useMemo(() => resolved(raw, root), [raw, root]);
  const kind = depth > DEPTH_MAX ? "raw" : kindOf(schema);
  const under = props.problems.filter((each) => placeOf(each) === path || placeOf(each).startsWith(`${path}/`));
  const title = titleOf(schema, name);
  const help = typeof schema.description === "string" ? schema.description : "";
  const marks = {
    id,
    disabled,
    "aria-invalid": under.length > 0 || undefined,
    "aria-describedby": `${id}-help ${id}-problem`,
    "aria-required": required || undefined,
  };

  if (kind === "object") return <ObjectField {...props} schema={schema} title={title} help={help} />;
  if (kind === "array") return <ArrayField {...props} schema={schema} title={title} help={help} />;

  const limit = limits(schema);
  const about = (
    <>
      {(help || limit) && (
        <p className={css.help} id={`${id}-help`}>
          {help}
          {help && limit && " · "}
          {limit}
        </p>
      )}
      <Problems problems={under} id={`${id}-problem`} />
    </>
  );
  if (kind === "boolean") {
    return (
      <div className={css.field}>
        <label className={css.check}>
          <input type="checkbox" {...marks} checked={props.value === true} onChange={(event) => props.onChange(event.target.checked)} />
          <span className={css.label}>{title}</span>
        </label>
        {about}
      </div>
    );
  }
  return (
    <div className={css.field}>
      <label className={css.label} htmlFor={id}>
        {title} {required ? <span className={css.required}>(required)</span> : null}
      </label>
      {kind === "enum" ? (
        <EnumControl schema={schema} value={props.value} onChange={props.onChange} marks={marks} required={required} />
      ) : kind === "raw" ? (
        <RawControl value={props.value} onChange={props.onChange} label={title} disabled={disabled} />
      ) : kind === "string" ? (
        <TextControl schema={schema} value={props.value} onChange={props.onChange} marks={marks} required={required} />
      ) : (
        <NumberControl value={props.value} onChange={props.onChange} marks={marks} whole={kind === "integer"} />
      )}
      {about}
    </div>
  );
}

interface ControlProps {
  value: Json;
  onChange: (value: Json) => void;
  marks: Record<string, unknown>;
}

function EnumControl({ schema, value, onChange, marks, required }: ControlProps & { schema: Schema; required: boolean }) {
  const options = Array.isArray(schema.enum) ? (schema.enum as Json[]) : [schema.const];
  const titles = Array.isArray(schema.$titles) ? schema.$titles : [];
  const chosen = options.findIndex((each) => JSON.stringify(each) === JSON.stringify(value));
  return (
    <select {...marks} className={css.control} value={chosen < 0 ? "" : String(chosen)} onChange={(event) => onChange(event.target.value === "" ? undefined : options[Number(event.target.value)])}>
      {(!required || chosen < 0) && <option value="">{required ? "Choose…" : "–"}</option>}
      {options.map((each, index) => (
        <option key={index} value={index}>
          {typeof titles[index] === "string" ? titles[index] : typeof each === "string" ? each : JSON.stringify(each)}
        </option>
      ))}
    </select>
  );
}

function TextControl({ schema, value, onChange, marks, required }: ControlProps & { schema: Schema; required: boolean }) {
  const text = value === undefined || value === null ? "" : String(value);
  // An empty field is left out; where a text is required, the server says if it may be empty.
  const change = (next: string) => onChange(next === "" && !(required && value !== undefined && schema.minLength === undefined) ? undefined : next);
  const long = schema.format === "textarea" || (typeof schema.maxLength === "number" && schema.maxLength > 120) || text.includes("\n");
  if (long) return <textarea {...marks} className={css.control} rows={3} value={text} onChange={(event) => change(event.target.value)} />;
  const type = INPUTS[typeof schema.format === "string" ? schema.format : ""] ?? "text";
  const example = Array.isArray(schema.examples) ? schema.examples[0] : undefined;
  return <input {...marks} type={type} className={css.control} value={text} placeholder={typeof example === "string" ? `e.g. ${example}` : undefined} autoComplete="off" onChange={(event) => change(event.target.value)} />;
}

/** A number; what is no number is sent as it is, and the server says so. */
function NumberControl({ value, onChange, marks, whole }: ControlProps & { whole: boolean }) {
  const [typed, setTyped] = useState<string | null>(null);
  const shown = typed ?? (value === undefined || value === null ? "" : String(value));
  return (
    <input
      {...marks}
      type="text"
      inputMode={whole ? "numeric" : "decimal"}
      className={css.control}
      autoComplete="off"
      value={shown}
      onBlur={() => setTyped(null)}
      onChange={(event) => {
        const text = event.target.value;
        setTyped(text);
        const number = Number(text.trim().replace(",", "."));
        onChange(text.trim() === "" ? undefined : Number.isFinite(number) ? number : text);
      }}
    />
  );
}

function RawControl({ value, onChange, label, disabled }: { value: Json; onChange: (value: Json) => void; label: string; disabled: boolean }) {
  const [text, setText] = useState(() => (value === undefined ? "" : JSON.stringify(value, null, 2)));
  const [wrong, setWrong] = useState("");
  return (
    <>
      <Editor
        language="json"
        label={`${label} as JSON`}
        value={text}
        readOnly={disabled}
        minHeight={60}
        maxHeight={260}
        onChange={(next) => {
          setText(next);
          try {
            onChange(next.trim() === "" ? undefined : JSON.parse(next));
            setWrong("");
          } catch (error) {
            setWrong(error instanceof Error ? error.message : String(error));
          }
        }}
      />
      {wrong && (
        <p className={css.problem} role="status">
          <Icon name="warning" size={14} />
          <span>This is not JSON yet: {wrong}</span>
        </p>
      )}
    </>
  );
}

type GroupProps = FieldProps & { title: string; help: string };

function ObjectField({ schema, root, value, onChange, path, problems, disabled, depth, title, help }: GroupProps) {
  const properties = schema.properties as Schema;
  const required = Array.isArray(schema.required) ? schema.required : [];
  const known = isObject(value) ? value : {};
  // Documents keep no order of keys: what is required comes first.
  const names = Object.keys(properties).sort((left, right) => Number(required.includes(right)) - Number(required.includes(left)));
  const inside = (each: ProblemItem) => names.some((key) => placeOf(each) === `${path}/${step(key)}` || placeOf(each).startsWith(`${path}/${step(key)}/`));
  const own = problems.filter((each) => (placeOf(each) === path || placeOf(each).startsWith(`${path}/`)) && !inside(each));
  const fields = (
    <div className={css.fields}>
      {help && <p className={css.help}>{help}</p>}
      <Problems problems={own} />
      {names.map((key) => (
        <Field
          key={key}
          schema={isObject(properties[key]) ? (properties[key] as Schema) : {}}
          root={root}
          name={key}
          path={`${path}/${step(key)}`}
          required={required.includes(key)}
          value={known[key]}
          problems={problems}
          disabled={disabled}
          depth={depth + 1}
          onChange={(next) => {
            const { [key]: _, ...rest } = known;
            onChange(next === undefined ? rest : { ...known, [key]: next });
          }}
        />
      ))}
    </div>
  );
  if (depth === 0) return fields;
  return (
    <fieldset className={css.group}>
      <legend>{title}</legend>
      {fields}
    </fieldset>
  );
}

function ArrayField({ schema, root, value, onChange, path, problems, disabled, depth, title, help }: GroupProps) {
  const items = isObject(schema.items) ? schema.items : {};
  const list = Array.isArray(value) ? value : [];
  const own = problems.filter((each) => placeOf(each) === path);
  const one = resolved(items, root);
  const options = Array.isArray(one.enum) && schema.uniqueItems === true ? (one.enum as Json[]) : null;
  return (
    <fieldset className={css.group}>
      <legend>{title}</legend>
      <div className={css.fields}>
        {help && <p className={css.help}>{help}</p>}
        <Problems problems={own} />
        {options ? (
          <div className={css.choices}>
            {options.map((each, index) => (
              <label key={index} className={css.check}>
                <input
                  type="checkbox"
                  disabled={disabled}
                  checked={list.includes(each)}
                  onChange={(event) => onChange(event.target.checked ? options.filter((option) => option === each || list.includes(option)) : list.filter((option) => option !== each))}
                />
                <span>{String(each)}</span>
              </label>
            ))}
          </div>
        ) : (
          <>
            <div className={css.items}>
              {list.map((each, index) => (
                <div key={index} className={css.item}>
                  <Field
                    schema={items}
                    root={root}
                    name={`${title} ${index + 1}`}
                    path={`${path}/${index}`}
                    required={false}
                    value={each}
                    problems={problems}
                    disabled={disabled}
                    depth={depth + 1}
                    onChange={(next) => onChange(list.map((old, at) => (at === index ? (next === undefined ? null : next) : old)))}
                  />
                  <IconButton icon="close" label={`Remove ${title} ${index + 1}`} disabled={disabled} onClick={() => onChange(list.filter((_, at) => at !== index))} />
                </div>
              ))}
            </div>
            <div>
              <Button size="s" icon="plus" disabled={disabled} onClick={() => onChange([...list, initialValue(items, root) ?? (kindOf(one) === "object" ? {} : kindOf(one) === "string" ? "" : null)])}>
                Add
              </Button>
            </div>
          </>
        )}
      </div>
    </fieldset>
  );
}

/** Bring the first field with a problem into sight. */
export function focusInvalid(): void {
  requestAnimationFrame(() => document.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
}

export interface SchemaFormProps {
  schema: unknown;
  value: Json;
  onChange: (value: Json) => void;
  /** Problems of the server, and the path below which those of the form are: "/inputs". */
  problems?: readonly ProblemItem[];
  basePath?: string;
  disabled?: boolean;
  label: string;
}

/** A form, with a switch to edit the same value as JSON. */
export function SchemaForm({ schema, value, onChange, problems = [], basePath = "", disabled = false, label }: SchemaFormProps) {
  const formed = canShow(schema);
  const [raw, setRaw] = useState(!formed);
  const root = isObject(schema) ? schema : {};
  const mine = problems.filter((each) => each.path === basePath || each.path.startsWith(`${basePath}/`));
  return (
    <div className={css.form} role="group" aria-label={label}>
      {raw || !formed ? (
        <>
          <RawControl value={value} onChange={onChange} label={label} disabled={disabled} />
          {mine.map((each, index) => (
            <p key={index} className={css.problem}>
              <Icon name="warning" size={14} />
              <span>
                <code>{each.path.slice(basePath.length) || "/"}</code> {each.message}
              </span>
            </p>
          ))}
        </>
      ) : (
        <Field schema={root} root={root} value={value} onChange={onChange} path={basePath} name={label} required problems={mine} disabled={disabled} depth={0} />
      )}
      {formed && (
        <div>
          <Button kind="quiet" size="s" icon="edit" onClick={() => setRaw(!raw)}>
            {raw ? "Edit as a form" : "Edit as JSON"}
          </Button>
        </div>
      )}
    </div>
  );
}
