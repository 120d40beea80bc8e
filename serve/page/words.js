// The texts of the page in its languages, and how they are put in.

const ENGLISH = {
  tagline: "Speech to text. Drafting makes it faster and never changes the text.",
  tongue: "Language of this page",
  input: "Recordings",
  record: "Record",
  stopRecording: "Stop",
  level: "Loudness",
  drop: "Drop recordings here",
  choose: "or choose files",
  settings: "Settings",
  model: "Model",
  drafter: "Drafter",
  language: "Language spoken",
  detect: "detect",
  key: "API key",
  keyHint: "if the server asks for one",
  words: "Times of words, for subtitles",
  queue: "Queue",
  remove: "Remove {name}",
  welcomeTitle: "See who guessed each word",
  welcome:
    "A small drafter guesses the next words. The model checks the whole guess in one pass, and keeps what it would " +
    "have said itself.",
  welcomeTokens: "Each token has the colour of its drafter; the model's own are plain.",
  welcomePasses: "Each column of the strip is one pass of the model: the higher, the more guesses were right.",
  welcomeSame: "“Without drafter” decodes again and compares. The difference must be empty.",
  result: "Transcript",
  tokens: "Tokens",
  stop: "Stop",
  again: "Run again",
  compare: "Without drafter",
  passes: "Passes",
  legend: "Who drafted the tokens",
  strip: "Passes of the model",
  ownTokens: "model itself",
  passHint: "Point at a token or a column, or use the arrow keys in the strip.",
  noPasses: "no passes yet",
  passDrafted: "Pass {pass}: {drafter} guessed {rows}, {accepted} accepted — “{text}”",
  passLive: "Pass {pass}: {accepted} accepted from {drafter} — “{text}”",
  passRefused: "Pass {pass}: {rows} guessed, none accepted — “{text}”",
  passPlain: "Pass {pass}: nothing guessed — “{text}”",
  text: "Text",
  downloads: "Download",
  waiting: "waiting",
  working: "transcribing",
  recording: "recording",
  done: "done",
  failed: "failed",
  stopped: "stopped",
  finished: "{name}: {tokens} tokens in {passes} passes.",
  realTime: "Real-time factor",
  realTimeNote: "{times} × faster than speech",
  perPass: "Tokens a pass",
  perPassNote: "{tokens} tokens, {passes} passes",
  encoder: "Encoder",
  encoderNote: "of {seconds} s in the model",
  speedUp: "Decoder speed-up",
  speedUpRun: "beside the run without drafter",
  speedUpPrice: "beside a pass for each token",
  speedUpNone: "“Without drafter” tells it",
  unknown: "known after “Run again”",
  comparing: "Decoding again without drafter …",
  same: "No difference: {tokens} of {tokens} tokens are the same.",
  different: "{tokens} tokens differ. This is a fault: please report it.",
  compareWith: "with {drafter}",
  compareWithout: "without drafter",
  compareRow: "{passes} passes, {seconds} s in the decoder",
  compareRowLive: "{passes} passes",
  recordingName: "Recording {number}",
  no_microphone: "The browser gives no microphone here: open the page over https, or on this machine as localhost.",
  NotAllowedError: "The browser was told not to give the microphone to this page.",
  NotFoundError: "There is no microphone.",
  lost_line: "The line to the server broke.",
  invalid_api_key: "The server asks for an API key: write it into the settings.",
};

const GERMAN = {
  tagline: "Sprache zu Text. Vorschläge machen es schneller und ändern nie den Text.",
  tongue: "Sprache dieser Seite",
  input: "Aufnahmen",
  record: "Aufnehmen",
  stopRecording: "Beenden",
  level: "Lautstärke",
  drop: "Aufnahmen hier ablegen",
  choose: "oder Dateien wählen",
  settings: "Einstellungen",
  model: "Modell",
  drafter: "Vorschläge von",
  language: "Gesprochene Sprache",
  detect: "erkennen",
  key: "API-Schlüssel",
  keyHint: "falls der Server einen verlangt",
  words: "Zeiten der Wörter, für Untertitel",
  queue: "Warteschlange",
  remove: "{name} entfernen",
  welcomeTitle: "Sehen, wer jedes Wort erraten hat",
  welcome:
    "Ein kleiner Helfer schlägt die nächsten Wörter vor. Das Modell prüft den ganzen Vorschlag in einem Durchgang und " +
    "behält, was es selbst gesagt hätte.",
  welcomeTokens: "Jedes Token hat die Farbe dessen, der es vorschlug; die eigenen des Modells sind farblos.",
  welcomePasses: "Jede Säule ist ein Durchgang des Modells: je höher, desto mehr Vorschläge stimmten.",
  welcomeSame: "„Ohne Vorschläge“ rechnet noch einmal und vergleicht. Der Unterschied muss leer sein.",
  result: "Abschrift",
  tokens: "Token",
  stop: "Anhalten",
  again: "Noch einmal",
  compare: "Ohne Vorschläge",
  passes: "Durchgänge",
  legend: "Wer die Token vorschlug",
  strip: "Durchgänge des Modells",
  ownTokens: "Modell selbst",
  passHint: "Auf ein Token oder eine Säule zeigen, oder die Pfeiltasten im Streifen benutzen.",
  noPasses: "noch keine Durchgänge",
  passDrafted: "Durchgang {pass}: {drafter} schlug {rows} vor, {accepted} angenommen — „{text}“",
  passLive: "Durchgang {pass}: {accepted} von {drafter} angenommen — „{text}“",
  passRefused: "Durchgang {pass}: {rows} vorgeschlagen, keines angenommen — „{text}“",
  passPlain: "Durchgang {pass}: nichts vorgeschlagen — „{text}“",
  text: "Text",
  downloads: "Herunterladen",
  waiting: "wartet",
  working: "in Arbeit",
  recording: "nimmt auf",
  done: "fertig",
  failed: "gescheitert",
  stopped: "angehalten",
  finished: "{name}: {tokens} Token in {passes} Durchgängen.",
  realTime: "Echtzeitfaktor",
  realTimeNote: "{times} × schneller als gesprochen",
  perPass: "Token je Durchgang",
  perPassNote: "{tokens} Token, {passes} Durchgänge",
  encoder: "Encoder",
  encoderNote: "von {seconds} s im Modell",
  speedUp: "Gewinn im Decoder",
  speedUpRun: "neben dem Lauf ohne Vorschläge",
  speedUpPrice: "neben einem Durchgang je Token",
  speedUpNone: "„Ohne Vorschläge“ zeigt ihn",
  unknown: "bekannt nach „Noch einmal“",
  comparing: "Rechnet noch einmal ohne Vorschläge …",
  same: "Kein Unterschied: {tokens} von {tokens} Token sind gleich.",
  different: "{tokens} Token sind anders. Das ist ein Fehler: bitte melden.",
  compareWith: "mit {drafter}",
  compareWithout: "ohne Vorschläge",
  compareRow: "{passes} Durchgänge, {seconds} s im Decoder",
  compareRowLive: "{passes} Durchgänge",
  recordingName: "Aufnahme {number}",
  no_microphone: "Der Browser gibt hier kein Mikrofon: die Seite über https öffnen, oder auf diesem Rechner als localhost.",
  NotAllowedError: "Dem Browser wurde verboten, dieser Seite das Mikrofon zu geben.",
  NotFoundError: "Es gibt kein Mikrofon.",
  lost_line: "Die Verbindung zum Server ist abgerissen.",
  invalid_api_key: "Der Server verlangt einen API-Schlüssel: bitte in die Einstellungen schreiben.",
};

export const TONGUES = { en: ENGLISH, de: GERMAN };
let tongue = "en";

// The text named `name` with its {places} filled; undefined where there is none.
export function say(name, values = {}) {
  return TONGUES[tongue][name]?.replace(/\{(\w+)\}/g, (_, place) => values[place]);
}

export function number(value, digits = 0) {
  return value.toLocaleString(tongue, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function languageName(code) {
  return new Intl.DisplayNames(tongue, { type: "language" }).of(code);
}

// The language that was chosen here before, or the browser's, or English.
export function firstTongue() {
  const wanted = [localStorage.getItem("tongue"), ...navigator.languages.map((code) => code.slice(0, 2))];
  return wanted.find((code) => code in TONGUES) ?? "en";
}

// Write the texts of the page in another language.
export function speak(code) {
  tongue = code;
  localStorage.setItem("tongue", code);
  document.documentElement.lang = code;
  for (const one of document.querySelectorAll("[data-t]")) one.textContent = say(one.dataset.t);
  for (const one of document.querySelectorAll("[data-t-label]")) one.setAttribute("aria-label", say(one.dataset.tLabel));
  for (const one of document.querySelectorAll("[data-t-hint]")) one.placeholder = say(one.dataset.tHint);
}
