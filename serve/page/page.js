// The page: recordings in a queue, one of them shown.

import { cuesOf, download } from "./cues.js";
import { showComparison, showFigures } from "./figures.js";
import { extend, partOf } from "./live.js";
import { Recorder } from "./recorder.js";
import { listDrafters, listModels, setKey, transcribe } from "./server.js";
import { SubtitleEditor } from "./subtitles.js";
import { element, TokenView } from "./tokens.js";
import { say, speak, TONGUES } from "./words.js";

const at = (id) => document.getElementById(id);
const view = new TokenView({ text: at("text"), strip: at("strip"), legend: at("legend"), note: at("pass") });
const editor = new SubtitleEditor(at("subtitles"));
const items = [];
let shown = null;
let recorder = null;
let isBusy = false;

// ---- recordings ----

function newItem(name, file, state) {
	const item = { name, file, state, segments: [], drafters: [], cues: [] };
	item.row = element("li");
	item.button = element("button", "item");
	item.button.onclick = () => show(item);
	item.remove = element("button", "remove", "×");
	item.remove.onclick = () => remove(item);
	item.row.append(item.button, item.remove);
	items.push(item);
	at("queue").append(item.row);
	setState(item, state);
	return item;
}

function addFiles(files) {
	const [first] = [...files].map((file) => newItem(file.name, file, "waiting"));
	if (first && !isBusy && !recorder) show(first);
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
	Object.assign(item, { segments: [], cues: [], figures: null, plain: null });
	setState(item, "working");
	if (item === shown) show(item);
	const found = await decode(item, settings(), (event) => {
		item.drafters = event.drafters;
		item.segments.push(event);
		if (item === shown) view.add(event, item.drafters);
	});
	item.figures = found?.figures;
	finish(item, found ? "done" : item.state);
}

// The segments and figures; undefined where it failed or was stopped, which the item then says.
async function decode(item, settings, onSegment = () => {}) {
	const found = { segments: [] };
	item.stopper = new AbortController();
	item.error = null;
	try {
		for await (const event of transcribe(item.file, settings, item.stopper.signal)) {
			if (event.type === "specedge.figures") found.figures = event;
			if (event.type !== "specedge.segment") continue;
			found.segments.push(event);
			onSegment(event);
		}
		return found;
	} catch (error) {
		fail(item, error);
	}
}

function finish(item, state) {
	Object.assign(item, { cues: cuesOf(item.segments), past: [], future: [] });
	setState(item, state);
}

function fail(item, error) {
	const isStopped = error.name === "AbortError";
	item.error = isStopped ? null : errorText(error);
	setState(item, isStopped ? "stopped" : "failed");
}

const errorText = (error) => say(error.code) ?? error.message;

// Decode again with no drafter, to compare.
async function compare(item) {
	setState(item, "comparing");
	item.plain = await decode(item, { ...settings(), drafter: "none" });
	if (item.plain) setState(item, "done");
}

function remove(item) {
	item.stopper?.abort();
	const place = items.indexOf(item);
	items.splice(place, 1);
	item.row.remove();
	const next = items[place] ?? items[place - 1];
	if (item === shown) show(next);
	(next?.button ?? at("files")).focus();
}

function setState(item, state) {
	item.state = state;
	item.button.replaceChildren(element("span", "", item.name), element("small", state, say(state)));
	item.button.setAttribute("aria-current", item === shown);
	item.remove.setAttribute("aria-label", say("remove", item));
	item.remove.hidden = state === "recording";
	if (item === shown) refresh();
}

// ---- the microphone ----

async function record() {
	at("record").disabled = Boolean(recorder);
	if (recorder) return recorder.stop();
	const item = newItem(say("recordingName", { number: items.length + 1 }), null, "recording");
	show(item);
	recorder = new Recorder({
		settings: settings(),
		onEvent: (event) => takeLive(item, event),
		onLevel: showLevel,
		onEnd: (error) => endRecording(item, error),
	});
	showRecording();
	recorder.start();
}

function showRecording() {
	at("record").classList.toggle("is-on", Boolean(recorder));
	at("record-text").textContent = say(recorder ? "stopRecording" : "record");
	at("level").hidden = !recorder;
}

function showLevel(level) {
	at("level").firstChild.value = Math.sqrt(level);
	at("clock").textContent = `${Math.floor(recorder.seconds)} s`;
}

// A turn, which a pause ends, is a segment; what is confirmed of it comes in parts.
function takeLive(item, event) {
	const turn = item.segments.at(-1);
	const isSame = turn?.item === event.item_id;
	if (event.type === "input_audio_buffer.speech_started") item.start = event.audio_start_ms / 1000;
	if (event.type === "input_audio_buffer.speech_stopped" && isSame) turn.end = event.audio_end_ms / 1000;
	if (event.type === "specedge.tentative" && item === shown) view.addTentative(event.text);
	if (event.type !== "specedge.confirmed") return;
	const part = partOf(event, item.start ?? 0, recorder.seconds);
	item.drafters = event.drafters;
	if (isSame) extend(turn, part);
	else item.segments.push(structuredClone(part));
	if (item !== shown) return;
	view.add(part, item.drafters);
	showFigures(at("figures"), item);
}

function endRecording(item, error) {
	if (recorder.chunks.length) item.file = recorder.file(`${item.name}.wav`);
	recorder = null;
	at("record").disabled = false;
	showRecording();
	if (item === shown) view.addTentative("");
	finish(item, "done");
	if (error) fail(item, error);
}

// ---- what is shown ----

function show(item) {
	shown = item;
	at("result").hidden = !item;
	at("welcome").hidden = Boolean(item);
	view.clear();
	for (const segment of item?.segments ?? []) view.add(segment, item.drafters);
	for (const each of items) setState(each, each.state);
}

function refresh() {
	const { name, state, file, error, plain, cues } = shown;
	const isAtRest = ["done", "failed", "stopped"].includes(state);
	at("name").textContent = name;
	at("stop").hidden = !["working", "comparing"].includes(state);
	at("again").hidden = !(isAtRest && file);
	at("compare").hidden = !(isAtRest && file && cues.length);
	at("error").textContent = error ?? "";
	showFigures(at("figures"), shown);
	if (plain) showComparison(at("comparison"), shown);
	else at("comparison").textContent = state === "comparing" ? say("comparing") : "";
	for (const button of document.querySelectorAll("[data-format]")) button.disabled = !cues.length;
	at("subtitles").hidden = !cues.length;
	openEditor();
}

function openEditor() {
	if (at("subtitles").open && shown?.cues.length) editor.open(shown);
}

// ---- settings ----

function settings() {
	const [model, drafter, language] = ["model", "drafter", "language"].map((name) => at(name).value.trim());
	return { model, drafter, language, words: at("words").checked };
}

function fill(select, values, chosen) {
	select.replaceChildren(...values.map((value) => new Option(value)));
	select.value = chosen;
}

async function askServer() {
	at("status").textContent = "";
	try {
		const models = await listModels();
		fill(at("model"), models, models[0]);
		await askDrafters();
	} catch (error) {
		at("status").textContent = errorText(error);
	}
}

async function askDrafters() {
	const found = await listDrafters(at("model").value);
	fill(at("drafter"), found.drafters, found.default);
}

function changeTongue(code) {
	at("tongue").value = localStorage.tongue = code;
	speak(code);
	showRecording();
	if (shown?.state !== "recording") show(shown);
}

// ---- start ----

function listen() {
	at("record").onclick = record;
	at("files").onchange = ({ target }) => {
		addFiles(target.files);
		target.value = "";
	};
	at("stop").onclick = () => shown.stopper.abort();
	at("again").onclick = () => {
		setState(shown, "waiting");
		work();
	};
	at("compare").onclick = () => compare(shown);
	at("subtitles").ontoggle = openEditor;
	at("model").onchange = askDrafters;
	at("tongue").onchange = ({ target }) => changeTongue(target.value);
	at("key").onchange = ({ target }) => {
		setKey(target.value);
		askServer();
	};
	for (const button of document.querySelectorAll("[data-format]")) button.onclick = () => download(shown, button.dataset.format);
	// Files may be dropped anywhere.
	document.ondragover = (event) => event.preventDefault();
	document.ondrop = (event) => {
		event.preventDefault();
		addFiles(event.dataTransfer.files);
	};
}

const tongues = [localStorage.tongue, ...navigator.languages.map((code) => code.slice(0, 2)), "en"];
changeTongue(tongues.find((code) => TONGUES.includes(code)));
listen();
askServer();
