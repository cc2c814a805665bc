/** The request of a column as commands and programs, to copy. */

import { GATEWAY } from "./api.js";
import { h, html, useState } from "./lib.js";
import { searchPath } from "./requests.js";
import { Choices, Dialog } from "./ui.js";

/** JSON is Python but for these. */
const WORDS = /** @type {Record<string, string>} */ ({ true: "True", false: "False", null: "None" });

/** @param {{index: string, body: any, close: () => void}} props */
export function RequestDialog({ index, body, close }) {
  const [chosen, setChosen] = useState(0);
  const [copied, setCopied] = useState({ text: "", note: "" });
  const languages = inLanguages(index, body);
  const [, text] = languages[chosen];
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied({ text, note: "Copied" });
    } catch {
      setCopied({ text, note: "This browser copies nothing here: select the text" });
    }
  };
  const names = languages.map(([name]) => name);
  const content = html`
    <div class="actions">
      ${h(Choices, { label: "Language", kind: "actions", names, chosen, choose: setChosen })}
      <button class="primary" onClick=${copy}>Copy</button>
      <span role="status" class="hint">${copied.text === text && copied.note}</span>
    </div>
    <pre class="json" tabindex="0">${text}</pre>
  `;
  return h(Dialog, { title: "The request", kind: "code", close }, content);
}

/** @type {(index: string, body: any) => [string, string][]} Names of languages with the request in them. */
function inLanguages(index, body) {
  const json = JSON.stringify(body, null, 2);
  const target = inShell(`${GATEWAY}${searchPath(index)}?pretty`);
  return [
    ["curl", `curl -s ${target} -H 'content-type: application/json' -d ${inShell(json)}`],
    ["Python, elasticsearch", python("Elasticsearch", "elasticsearch", index, body)],
    ["Python, opensearch-py", python("OpenSearch", "opensearchpy", index, body)],
    ["JSON", json],
  ];
}

/** @type {(text: string) => string} The text as one word of a shell. */
const inShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** @type {(client: string, module: string, index: string, body: any) => string} */
const python = (client, module, index, body) => `from ${module} import ${client}

client = ${client}(${literal(GATEWAY)})
body = ${literal(body)}
response = client.search(index=${literal(index)}, body=body)
for hit in response["hits"]["hits"]:
    print(hit["_score"], hit["_id"])`;

/** @type {(value: any) => string} The value as Python writes it. */
function literal(value) {
  const json = JSON.stringify(value, null, 4);
  return json.replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, (found) => WORDS[found] ?? found);
}
