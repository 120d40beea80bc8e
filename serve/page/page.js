// The page: recordings in a queue, one of them shown.

import { showComparison } from "./comparison.js";
import { cuesOf, download } from "./cues.js";
import { showFigures } from "./figures.js";
import { Recorder } from "./recorder.js";
import { listDrafters, listModels, setKey, transcribe } from "./server.js";
import { element, TokenView } from "./tokens.js";
import { firstTongue, languageName, number, say, speak, TONGUES } from "./words.js";

// The hundred languages of Whisper.
const LANGUAGES =
  "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it " +
  "ja jv ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn " +
  "so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo yue zh";

const at = (id) => document.getElementById(id);
const view = new TokenView({ text: at("text"), strip: at("strip"), legend: at("legend"), note: at("pass") });
const items = [];
let shown = null;
let recorder = null;
let isBusy = false;
let nRecordings = 0;

// ---- recordings ----------------------------------------------------------------------------------------------------

function newItem(name, file, state) {
  const item = { name, file, state, segments: [], drafters: [], cues: [], figures: null, plain: null, error: null };
  item.row = element("li");
  item.button = element("button", "item");
  item.button.addEventListener("click", () => show(item));
  item.remove = element("button", "remove", "×");
  item.remove.addEventListener("click", () => remove(item));
  item.row.append(item.button, item.remove);
  items.push(item);
  at("queue").append(item.row);
  at("queue-title").hidden = false;
  refreshRow(item);
  return item;
}

function addFiles(files) {
  const added = [...files].map((file) => newItem(file.name, file, "waiting"));
  if (!added.length) return;
  if (!isBusy && !recorder) show(added[0]);
  work();
}

// One after the other: the server would only have them wait for each other.
async function work() {
  if (isBusy) return;
  isBusy = true;
  for (let item; (item = items.find(({ state }) => state === "waiting")); ) await run(item);
  isBusy = false;
}

async function run(item) {
  Object.assign(item, { segments: [], cues: [], figures: null, plain: null, error: null, stopper: new AbortController() });
  setState(item, "working");
  if (item === shown) show(item);
  try {
    for await (const event of transcribe(item.file, settings(), item.stopper.signal)) take(item, event);
    setState(item, "done");
    const { tokens, passes } = item.figures;
    tell(say("finished", { name: item.name, tokens: number(tokens), passes: number(passes) }));
  } catch (error) {
    fail(item, error);
  }
  item.cues = cuesOf(item.segments);
  if (item === shown) refresh();
}

function take(item, event) {
  if (event.type === "specedge.segment") {
    item.drafters = event.drafters;
    item.segments.push(event);
    if (item === shown) view.add(event, item.drafters);
  } else if (event.type === "specedge.figures") {
    item.figures = event;
  }
  if (item === shown) showFigures(at("figures"), item);
}

function fail(item, error) {
  const isStopped = error.name === "AbortError";
  item.error = isStopped ? null : errorText(error);
  setState(item, isStopped ? "stopped" : "failed");
  if (item.error) tell(item.error);
}

function errorText(error) {
  return say(error.code ?? error.name) ?? error.message;
}

function remove(item) {
  if (item.state === "recording") return;
  item.stopper?.abort();
  const next = items[items.indexOf(item) + 1] ?? items[items.indexOf(item) - 1] ?? null;
  items.splice(items.indexOf(item), 1);
  item.row.remove();
  at("queue-title").hidden = !items.length;
  if (item === shown) show(next);
  (next?.button ?? at("files")).focus();
}

function setState(item, state) {
  item.state = state;
  refreshRow(item);
}

function refreshRow(item) {
  item.button.replaceChildren(element("span", "item-name", item.name), element("small", `state ${item.state}`, say(item.state)));
  item.button.setAttribute("aria-current", item === shown);
  item.remove.setAttribute("aria-label", say("remove", item));
  item.remove.hidden = item.state === "recording";
}

// ---- without drafter -----------------------------------------------------------------------------------------------

async function compare(item) {
  const plain = { segments: [], figures: null };
  item.stopper = new AbortController();
  item.plain = null;
  item.isComparing = true;
  refresh();
  try {
    for await (const event of transcribe(item.file, { ...settings(), drafter: "none" }, item.stopper.signal)) {
      if (event.type === "specedge.segment") plain.segments.push(event);
      if (event.type === "specedge.figures") plain.figures = event;
    }
    item.plain = plain;
  } catch (error) {
    fail(item, error);
  }
  item.isComparing = false;
  if (item === shown) refresh();
}

// ---- recording -----------------------------------------------------------------------------------------------------

async function record() {
  if (recorder) {
    at("record").disabled = true;
    recorder.stop();
    return;
  }
  nRecordings += 1;
  const item = newItem(say("recordingName", { number: nRecordings }), null, "recording");
  item.isLive = true;
  show(item);
  recorder = new Recorder({
    settings: settings(),
    onEvent: (event) => takeLive(item, event),
    onLevel: showLevel,
    onEnd: (error) => endRecording(item, error),
  });
  setRecording(true);
  try {
    await recorder.start();
  } catch (error) {
    endRecording(item, error);
  }
}

function setRecording(isRecording) {
  at("record").disabled = false;
  at("record").setAttribute("aria-pressed", isRecording);
  at("record-text").textContent = say(isRecording ? "stopRecording" : "record");
  at("level").hidden = !isRecording;
}

function showLevel(level) {
  at("level").querySelector("meter").value = Math.sqrt(level);
  const seconds = Math.floor(recorder.seconds);
  at("clock").textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

// A turn, which a pause ends, is a segment; what is confirmed of it comes in parts.
function takeLive(item, event) {
  const turn = item.segments.at(-1);
  if (event.type === "input_audio_buffer.speech_started") {
    item.startS = event.audio_start_ms / 1000;
  } else if (event.type === "specedge.confirmed") {
    item.drafters = event.drafters;
    const part = partOf(event, item.startS ?? 0);
    if (turn?.item === part.item) extend(turn, part);
    else item.segments.push(structuredClone(part));
    if (item === shown) view.add(part, item.drafters);
  } else if (event.type === "input_audio_buffer.speech_stopped") {
    if (turn?.item === event.item_id) turn.end = event.audio_end_ms / 1000;
  } else if (event.type === "specedge.tentative" && item === shown) {
    view.addTentative(event.text);
  }
  if (item === shown) showFigures(at("figures"), item);
}

// Confirmed text as a segment: its passes are counted anew from 0.
function partOf({ item_id, text, tokens }, start) {
  const numbers = [...new Set(tokens.map((token) => token.pass))];
  const passes = numbers.map((pass) => {
    const drafted = tokens.filter((token) => token.pass === pass && token.by);
    return { drafter: drafted[0]?.by ?? null, accepted: drafted.length };
  });
  const own = tokens.map((token) => ({ ...token, pass: numbers.indexOf(token.pass) }));
  return { item: item_id, start, end: recorder.seconds, text, tokens: own, passes };
}

function extend(turn, part) {
  turn.text += part.text;
  turn.end = part.end;
  turn.tokens.push(...part.tokens.map((token) => ({ ...token, pass: token.pass + turn.passes.length })));
  turn.passes.push(...part.passes);
}

function endRecording(item, error) {
  const { seconds } = recorder;
  if (seconds) item.file = recorder.file(`${item.name}.wav`);
  item.cues = cuesOf(item.segments);
  recorder = null;
  setRecording(false);
  setState(item, "done");
  if (error) fail(item, error);
  if (item === shown) {
    view.addTentative("");
    refresh();
  }
}

// ---- what is shown -------------------------------------------------------------------------------------------------

function show(item) {
  shown = item;
  view.clear();
  items.forEach(refreshRow);
  at("result").hidden = !item;
  at("welcome").hidden = Boolean(item);
  if (!item) return;
  at("name").textContent = item.name;
  for (const segment of item.segments) view.add(segment, item.drafters);
  refresh();
}

function refresh() {
  const { state, file, error, isComparing, plain, segments } = shown;
  const isAtRest = ["done", "failed", "stopped"].includes(state) && !isComparing;
  at("stop").hidden = !(state === "working" || isComparing);
  at("again").hidden = !(isAtRest && file);
  at("compare").hidden = !(isAtRest && file && segments.length && state === "done");
  at("error").hidden = !error;
  at("error").textContent = error ?? "";
  at("comparison").hidden = !(isComparing || plain);
  if (isComparing) at("comparison").replaceChildren(element("p", "", say("comparing")));
  if (plain) showComparison(at("comparison"), shown);
  for (const button of document.querySelectorAll("[data-format]")) button.disabled = !shown.cues.length;
  showFigures(at("figures"), shown);
}

function tell(text) {
  at("status").textContent = text;
}

// ---- settings ------------------------------------------------------------------------------------------------------

function settings() {
  return {
    model: at("model").value,
    drafter: at("drafter").value,
    language: at("language").value,
    words: at("words").checked,
  };
}

function fill(select, values, name = (value) => value) {
  const before = select.value;
  select.replaceChildren(...values.map((value) => new Option(name(value), value)));
  if (values.includes(before)) select.value = before;
}

async function askServer() {
  try {
    fill(at("model"), await listModels());
    await askDrafters();
  } catch (error) {
    tell(errorText(error));
    at("settings").open = error.code === "invalid_api_key";
  }
}

async function askDrafters() {
  const found = await listDrafters(at("model").value);
  const chosen = at("drafter").value;
  fill(at("drafter"), found.drafters);
  if (!found.drafters.includes(chosen)) at("drafter").value = found.default;
}

function fillLanguages() {
  const names = LANGUAGES.split(" ").map((code) => [languageName(code), code]).sort(([a], [b]) => a.localeCompare(b));
  const nameOf = new Map(names.map(([name, code]) => [code, name]));
  fill(at("language"), ["", ...nameOf.keys()], (code) => nameOf.get(code) ?? say("detect"));
}

function changeTongue(code) {
  speak(code);
  fillLanguages();
  setRecording(Boolean(recorder));
  items.forEach(refreshRow);
  if (shown && shown.state !== "recording") show(shown);
}

// ---- start ---------------------------------------------------------------------------------------------------------

// A sentence as it may come out, for those who see the page for the first time.
function showExample() {
  const drafters = ["ctc", "ngram"];
  const parts = [["Call", null], [" the maintenance", "ctc"], [" crew", null], [" to generator", "ctc"], [" two.", "ngram"]];
  const example = new TokenView({ text: at("example"), strip: element("div"), legend: element("ul"), note: element("p") });
  example.add({ tokens: parts.map(([text, by]) => ({ text, by, pass: 0 })), passes: [] }, drafters);
}

function listen() {
  at("record").addEventListener("click", record);
  at("files").addEventListener("change", ({ target }) => {
    addFiles(target.files);
    target.value = "";
  });
  at("stop").addEventListener("click", () => shown.stopper.abort());
  at("again").addEventListener("click", () => {
    setState(shown, "waiting");
    refresh();
    work();
  });
  at("compare").addEventListener("click", () => compare(shown));
  at("model").addEventListener("change", askDrafters);
  at("tongue").addEventListener("change", ({ target }) => changeTongue(target.value));
  at("key").addEventListener("change", ({ target }) => {
    setKey(target.value);
    askServer();
  });
  for (const button of document.querySelectorAll("[data-format]")) {
    button.addEventListener("click", () => download(shown, button.dataset.format));
  }
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (event.key.toLowerCase() === "r" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) record();
  });
  listenForDrops();
}

// Files may be dropped anywhere on the page.
function listenForDrops() {
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    at("drop").classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) at("drop").classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    at("drop").classList.remove("over");
    addFiles(event.dataTransfer.files);
  });
}

function start() {
  const names = Object.keys(TONGUES).map((code) => [code, new Intl.DisplayNames(code, { type: "language" }).of(code)]);
  for (const [code, name] of names) at("tongue").append(new Option(name, code));
  at("tongue").value = firstTongue();
  changeTongue(at("tongue").value);
  showExample();
  listen();
  askServer();
}

start();
