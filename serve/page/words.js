// The texts of the page in its languages, in the order of TONGUES.

const WORDS = {
	tagline: ["Speech to text: drafting makes it faster and never changes it.", "Sprache zu Text: Vorschläge machen es schneller und ändern ihn nie."],
	tongue: ["Language of this page", "Sprache dieser Seite"],
	input: ["Recordings", "Aufnahmen"],
	record: ["Record", "Aufnehmen"],
	stopRecording: ["Stop", "Beenden"],
	level: ["Loudness", "Lautstärke"],
	drop: ["Drop recordings here", "Aufnahmen hier ablegen"],
	choose: ["or choose files", "oder Dateien wählen"],
	settings: ["Settings", "Einstellungen"],
	model: ["Model", "Modell"],
	drafter: ["Drafter", "Vorschläge von"],
	language: ["Language, if known", "Sprache, falls bekannt"],
	key: ["API key, if asked for", "API-Schlüssel, falls verlangt"],
	words: ["Times of words, for subtitles", "Zeiten der Wörter, für Untertitel"],
	remove: ["Remove {name}", "{name} entfernen"],
	welcomeTitle: ["See who guessed each word", "Sehen, wer jedes Wort erriet"],
	welcome: [
		"A drafter guesses the next words. The model checks them all in one pass, and keeps what it would have said itself.",
		"Ein Helfer schlägt Wörter vor. Das Modell prüft sie in einem Durchgang und behält, was es selbst gesagt hätte.",
	],
	same: ["No difference: {tokens} of {tokens} tokens are the same.", "Kein Unterschied: {tokens} von {tokens} Token sind gleich."],
	different: ["{tokens} tokens differ. This is a fault: please report it.", "{tokens} Token sind anders. Das ist ein Fehler: bitte melden."],
	stop: ["Stop", "Anhalten"],
	again: ["Run again", "Noch einmal"],
	compare: ["Without drafter", "Ohne Vorschläge"],
	comparing: ["comparing …", "vergleicht …"],
	passes: ["Passes", "Durchgänge"],
	legend: ["Drafters", "Vorschläge von"],
	ownTokens: ["model itself", "Modell selbst"],
	passHint: ["Point at a token or a column, or use the arrow keys here.", "Auf ein Token oder eine Säule zeigen, oder die Pfeiltasten benutzen."],
	passDrafted: [
		"Pass {pass}: {drafter} guessed {rows}, {accepted} accepted: “{text}”",
		"Durchgang {pass}: {drafter} schlug {rows} vor, {accepted} angenommen: „{text}“",
	],
	passLive: ["Pass {pass}: {accepted} accepted from {drafter}: “{text}”", "Durchgang {pass}: {accepted} von {drafter} angenommen: „{text}“"],
	passRefused: ["Pass {pass}: {rows} guessed, none accepted: “{text}”", "Durchgang {pass}: {rows} vorgeschlagen, keins angenommen: „{text}“"],
	text: ["Text", "Text"],
	downloads: ["Download", "Herunterladen"],
	waiting: ["waiting", "wartet"],
	working: ["in work", "in Arbeit"],
	recording: ["recording", "nimmt auf"],
	done: ["done", "fertig"],
	failed: ["failed", "gescheitert"],
	stopped: ["stopped", "angehalten"],
	realTime: ["Real-time factor", "Echtzeitfaktor"],
	realTimeNote: ["{times} × faster than speech", "{times} × schneller als gesprochen"],
	perPass: ["Tokens a pass", "Token je Durchgang"],
	perPassNote: ["tokens: {tokens}, passes: {passes}", "Token: {tokens}, Durchgänge: {passes}"],
	encoder: ["Encoder", "Encoder"],
	encoderNote: ["of {seconds} s in the model", "von {seconds} s im Modell"],
	speedUp: ["Decoder speed-up", "Gewinn im Decoder"],
	speedUpRun: ["beside the run without", "neben dem Lauf ohne"],
	speedUpPrice: ["beside a pass a token", "neben Token für Token"],
	speedUpNone: ["see “Without drafter”", "siehe „Ohne Vorschläge“"],
	compareWithout: ["no drafter", "ohne"],
	compareRow: ["{passes} passes, decoder {seconds} s", "{passes} Durchgänge, Decoder {seconds} s"],
	recordingName: ["Recording {number}", "Aufnahme {number}"],
	no_microphone: ["Browsers give the microphone only over https, or on localhost.", "Das Mikrofon gibt es nur über https oder auf localhost."],
	lost_line: ["The line to the server broke.", "Die Verbindung zum Server ist abgerissen."],
	invalid_api_key: ["The server asks for an API key: see the settings.", "Der Server verlangt einen API-Schlüssel: siehe Einstellungen."],
	subtitles: ["Subtitles", "Untertitel"],
	wave: ["Sound: space plays, arrows move, [ and ] set the times", "Ton: Leertaste spielt, Pfeile bewegen, [ und ] setzen die Zeiten"],
	noWave: ["This browser cannot play the file.", "Dieser Browser kann die Datei nicht spielen."],
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

// Write the texts of the page in another language.
export function speak(code) {
	tongue = document.documentElement.lang = code;
	for (const one of document.querySelectorAll("[data-t]")) one.textContent = say(one.dataset.t);
	for (const one of document.querySelectorAll("[data-t-label]")) one.setAttribute("aria-label", say(one.dataset.tLabel));
	for (const one of document.querySelectorAll("[data-t-hint]")) one.placeholder = say(one.dataset.tHint);
}
