// The texts of the page in its languages, in the order of TONGUES.

const WORDS = {
	tongue: ["Language of this page", "Sprache dieser Seite"],
	record: ["Record", "Aufnehmen"],
	stopRecording: ["Stop", "Beenden"],
	level: ["Loudness", "Lautstärke"],
	drop: ["Drop recordings here", "Aufnahmen hier ablegen"],
	choose: ["or choose files", "oder Dateien wählen"],
	settings: ["Settings", "Einstellungen"],
	model: ["Model", "Modell"],
	drafter: ["Drafter", "Vorschläge von"],
	key: ["API key, if asked for", "API-Schlüssel, falls verlangt"],
	remove: ["Remove {name}", "{name} entfernen"],
	again: ["Run again", "Noch einmal"],
	legend: ["Drafters", "Vorschläge von"],
	ownTokens: ["model itself", "Modell selbst"],
	waiting: ["waiting", "wartet"],
	recording: ["recording", "nimmt auf"],
	done: ["done", "fertig"],
	failed: ["failed", "gescheitert"],
	stopped: ["stopped", "angehalten"],
	lost_line: ["The line to the server broke.", "Die Verbindung zum Server ist abgerissen."],
	invalid_api_key: ["The server asks for an API key: see the settings.", "Der Server verlangt einen API-Schlüssel: siehe Einstellungen."],
	subtitles: ["Subtitles", "Untertitel"],
	wave: ["Sound: space plays, arrows move, [ and ] set the times", "Ton: Leertaste spielt, Pfeile bewegen, [ und ] setzen die Zeiten"],
	play: ["Play", "Spielen"],
	split: ["Split", "Teilen"],
	join: ["Join", "Verbinden"],
	fit: ["Fit lines", "Zeilen anpassen"],
	undo: ["Undo", "Zurück"],
	redo: ["Redo", "Wieder vor"],
	find: ["Find", "Suchen"],
	instead: ["Replace with", "Ersetzen durch"],
	replace: ["Replace all", "Alle ersetzen"],
	start: ["Start", "Beginn"],
	end: ["End", "Ende"],
	tooLong: ["{n} too long", "{n} zu lang"],
	keys: [
		"Ctrl+Enter splits, Alt+J joins, Alt+P plays, Alt+↑↓ change the row, Ctrl+Z undoes.",
		"Strg+Enter teilt, Alt+J verbindet, Alt+P spielt, Alt+↑↓ wechselt die Zeile, Strg+Z nimmt zurück.",
	],
	input: ["New recordings", "Neue Aufnahmen"],
	language: ["Language (found by itself)", "Sprache (wird erkannt)"],
	words: ["Times of words (slower)", "Zeiten der Wörter (langsamer)"],
	welcomeTitle: ["Speech becomes text", "Sprache wird Text"],
	welcome: [
		"Drop recordings or videos, or speak. Everything goes to this server alone; the texts are kept in this browser.",
		"Aufnahmen oder Videos ablegen, oder sprechen. Alles geht nur an diesen Server; die Texte bleiben in diesem Browser.",
	],
	working: ["listening …", "hört zu …"],
	progress: ["Progress", "Fortschritt"],
	left: ["{done} of {all}, {left} left", "{done} von {all}, noch {left}"],
	stop: ["Cancel", "Abbrechen"],
	speed: ["{times} × faster than speech", "{times} × schneller als gesprochen"],
	text: ["Text: arrow keys go from sentence to sentence", "Text: Pfeiltasten gehen von Satz zu Satz"],
	playFrom: ["Play from {time}", "Ab {time} spielen"],
	search: ["Search the text", "Im Text suchen"],
	hits: ["{hit} of {hits}", "{hit} von {hits}"],
	noHits: ["not found", "nicht gefunden"],
	copy: ["Copy", "Kopieren"],
	copied: ["Copied", "Kopiert"],
	player: ["Player", "Wiedergabe"],
	noSound: ["No sound: this browser cannot play the file, or did not keep it.", "Kein Ton: Dieser Browser kann die Datei nicht spielen oder hat sie nicht behalten."],
	noSpeech: ["No speech was heard.", "Es war keine Sprache zu hören."],
	history: ["History", "Verlauf"],
	historyNote: ["In this browser alone.", "Nur in diesem Browser."],
	clear: ["Clear", "Leeren"],
	guesses: ["Who guessed what", "Wer was erriet"],
	guessed: ["{guessed} of {all} tokens were guessed, and checked by the model.", "{guessed} von {all} Token wurden vorgeschlagen und vom Modell geprüft."],
	nothingGuessed: ["Nothing was guessed: the model wrote all {all} tokens itself.", "Nichts wurde vorgeschlagen: Das Modell schrieb alle {all} Token selbst."],
	repeated: [
		"The server had heard some of this sound before and repeated its text, which is no speed-up.",
		"Der Server kannte einen Teil des Tons und wiederholte den Text; das ist kein Gewinn.",
	],
	speedUp: ["The decoder was {times} × as fast as without.", "Der Decoder war {times} × so schnell wie ohne."],
	times: ["Encoder {encoder} s, decoder {decoder} s.", "Encoder {encoder} s, Decoder {decoder} s."],
	recordingName: ["Recording {time}", "Aufnahme {time}"],
	no_microphone: [
		"Browsers give the microphone only over https, or on localhost. Files can be dropped all the same.",
		"Das Mikrofon gibt es nur über https oder auf localhost. Dateien gehen trotzdem.",
	],
	NotFoundError: ["No microphone was found: plug one in, or drop a file.", "Kein Mikrofon gefunden: eins anschließen oder eine Datei ablegen."],
	NotAllowedError: [
		"The microphone is not allowed: allow it beside the address of this page, or drop a file.",
		"Das Mikrofon ist nicht erlaubt: neben der Adresse dieser Seite erlauben oder eine Datei ablegen.",
	],
	NotReadableError: ["Another program has the microphone: close it, or drop a file.", "Ein anderes Programm hat das Mikrofon: schließen oder eine Datei ablegen."],
};

export const TONGUES = ["en", "de"];
let tongue = "en";

// The text named `name` with its {places} filled; undefined where there is none.
export function say(name, values = {}) {
	return WORDS[name]?.[TONGUES.indexOf(tongue)].replace(/\{(\w+)\}/g, (_, place) => values[place]);
}

export function number(value, digits = 0) {
	return value.toLocaleString(tongue, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function element(tag, className = "", text = "") {
	const made = document.createElement(tag);
	made.className = className;
	made.textContent = text;
	return made;
}

export function languageName(code) {
	return /^[a-z]{2,3}$/.test(code) ? new Intl.DisplayNames(tongue, { type: "language" }).of(code) : code;
}

// Write the texts of the page in another language.
export function speak(code) {
	tongue = document.documentElement.lang = code;
	for (const one of document.querySelectorAll("[data-t]")) one.textContent = say(one.dataset.t);
	for (const one of document.querySelectorAll("[data-t-label]")) one.setAttribute("aria-label", say(one.dataset.tLabel));
	for (const one of document.querySelectorAll("[data-t-hint]")) one.placeholder = say(one.dataset.tHint);
}
