// The page: recordings in a queue, one of them shown.

import { download, shortClock, textOf } from "./cues.js";
import { showGuesses } from "./guesses.js";
import { keep } from "./history.js";
import { Microphone } from "./microphone.js";
import { errorText, progress, Queue, soundOf } from "./queue.js";
import { listDrafters, listModels, setKey } from "./server.js";
import { SubtitleEditor } from "./subtitles.js";
import { Transcript } from "./transcript.js";
import { languageName, number, say, speak, TONGUES } from "./words.js";

const at = (id) => document.getElementById(id);
const player = at("player");
const transcript = new Transcript({ text: at("text"), player, find: at("find"), found: at("found") });
const editor = new SubtitleEditor({ root: at("subtitles"), player, onChange: takeEdit });
const queue = new Queue({ now: at("queue"), before: at("history"), settings, onShow: show, onStart, onCue, onChange, onGone });
const microphone = new Microphone({
	...{ queue, button: at("record"), text: at("record-text"), level: at("level"), clock: at("clock"), advice: at("advice") },
	onTurn: (item, turn, isSame) => item === shown && (isSame ? transcript.replace(turn) : transcript.add(turn, true)),
	onTentative: (item, text) => item === shown && transcript.addTentative(text),
});
let shown = null;
let sound; // the file in the player

// ---- what the queue tells ----

function addFiles(files) {
	const wasBusy = queue.isBusy || microphone.recorder;
	const [first] = queue.addFiles(files);
	if (first && !wasBusy) show(first);
}

function onStart(item) {
	if (item === shown) show(item);
}

function onCue(item, cue) {
	if (item === shown) transcript.add(cue);
}

function onChange(item) {
	item.button.setAttribute("aria-current", item === shown);
	at("before").hidden = !at("history").hasChildNodes();
	if (item === shown) refresh();
	if (item.said === item.state || item.state === "kept") return;
	item.said = item.state;
	at("news").textContent = `${item.name}: ${item.error ?? say(item.state)}`;
}

function onGone(item, next) {
	at("before").hidden = !at("history").hasChildNodes();
	if (item === shown) show(next);
}

// Not at once: what is being clicked must not move away.
function takeEdit(item) {
	clearTimeout(item.timer);
	item.timer = setTimeout(() => {
		if (item === shown) transcript.show(item.cues);
		keep(item);
	}, 300);
}

// ---- what is shown ----

function show(item) {
	const before = shown;
	shown = item;
	at("result").hidden = !item;
	at("welcome").hidden = Boolean(item);
	before?.button.setAttribute("aria-current", false);
	if (!item) return;
	item.button.setAttribute("aria-current", true);
	transcript.show(item.cues.length ? item.cues : item.segments);
	refresh();
}

function refresh() {
	const { name, state, file, error, cues, segments } = shown;
	const isAtRest = ["done", "kept", "failed", "stopped"].includes(state);
	at("name").textContent = name;
	at("about").textContent = state === "failed" && !cues.length ? "" : about(shown);
	at("again").hidden = !(isAtRest && file);
	at("error").textContent = error ?? (state === "done" && !segments.length ? say("noSpeech") : "");
	at("progress").hidden = !["waiting", "working"].includes(state);
	at("stop").hidden = state !== "working";
	showProgress(progress(shown));
	at("said").hidden = !segments.length && state !== "recording";
	at("text").setAttribute("aria-live", state === "recording" ? "polite" : "off");
	at("tools").hidden = !cues.length;
	at("guesses").hidden = at("subtitles").hidden = !(isAtRest && cues.length);
	openPanels();
	openSound(shown);
}

// Language, length, model, and how fast.
function about({ state, language, duration, model, figures }) {
	const isDone = duration && ["done", "kept"].includes(state);
	const speed = isDone && figures?.real_time_factor ? say("speed", { times: number(1 / figures.real_time_factor, 1) }) : "";
	return [language && languageName(language), duration && shortClock(duration), model, speed].filter(Boolean).join(" · ");
}

function showProgress(found) {
	const bar = at("progress").firstChild;
	if (found) bar.value = found.share;
	else bar.removeAttribute("value");
	const left = found && { done: shortClock(found.share * shown.duration), all: shortClock(shown.duration), left: shortClock(found.left_s) };
	at("left").textContent = left ? say("left", left) : say(shown.state);
}

function openPanels() {
	const isOpen = (id) => at(id).open && !at(id).hidden;
	if (isOpen("guesses")) showGuesses({ figures: at("figures"), legend: at("legend"), text: at("tokens") }, shown);
	if (isOpen("subtitles")) editor.open(shown);
}

async function openSound(item) {
	const file = await soundOf(item);
	if (item !== shown || (file && file === sound)) return;
	sound = file;
	URL.revokeObjectURL(player.src);
	if (file) player.src = URL.createObjectURL(file);
	else player.removeAttribute("src");
	showPlayer(Boolean(file));
}

function showPlayer(isHeard) {
	player.hidden = !isHeard;
	at("silent").hidden = isHeard || shown.state === "recording";
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
	at("advice").textContent = "";
	try {
		const models = await listModels();
		fill(at("model"), models, models[0]);
		await askDrafters();
	} catch (error) {
		at("advice").textContent = errorText(error);
	}
}

async function askDrafters() {
	const found = await listDrafters(at("model").value);
	fill(at("drafter"), found.drafters, found.default);
}

function changeTongue(code) {
	at("tongue").value = localStorage.tongue = code;
	speak(code);
	microphone.show();
	for (const item of queue.items) queue.setState(item, item.state);
	if (shown?.cues.length) transcript.show(shown.cues);
}

// ---- start ----

function copy() {
	navigator.clipboard.writeText(textOf(shown)).then(() => (at("copy").textContent = at("news").textContent = say("copied")));
	setTimeout(() => (at("copy").textContent = say("copy")), 2000);
}

function listen() {
	at("files").onchange = ({ target }) => {
		addFiles(target.files);
		target.value = "";
	};
	at("stop").onclick = () => shown.stopper.abort();
	at("again").onclick = () => queue.runAgain(shown);
	at("copy").onclick = copy;
	at("copy").hidden = !navigator.clipboard; // only over https, or on localhost
	at("clear").onclick = () => {
		queue.clearHistory();
		at("files").focus();
	};
	at("guesses").ontoggle = at("subtitles").ontoggle = openPanels;
	at("model").onchange = askDrafters;
	at("tongue").onchange = ({ target }) => changeTongue(target.value);
	at("key").onchange = ({ target }) => {
		setKey(target.value);
		askServer();
	};
	for (const button of document.querySelectorAll("[data-format]")) button.onclick = () => download(shown, button.dataset.format);
	player.onerror = () => showPlayer(false);
	player.onloadedmetadata = () => player.classList.toggle("has-picture", player.videoWidth > 0);
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
queue.loadHistory();
