// What the page asks of the server: docs/serve.md has the interface.

let key = "";

export function setKey(value) {
	key = value.trim();
}

// An error of the server in OpenAI's shape, or of the line to it.
export class ServerError extends Error {
	constructor({ message, code, status }) {
		super(message);
		Object.assign(this, { code, status });
	}
}

async function ask(path, options = {}) {
	const headers = key ? { Authorization: `Bearer ${key}` } : {};
	const response = await fetch(path, { ...options, headers });
	if (response.ok) return response;
	const { error } = await response.json().catch(() => ({}));
	throw new ServerError({ message: response.statusText, ...error, status: response.status });
}

export async function listModels() {
	const { data } = await (await ask("v1/models")).json();
	return data.map(({ id }) => id);
}

// `drafters` that the model can do with, and the `default` of the server.
export async function listDrafters(model) {
	const response = await ask(`v1/specedge/drafters?model=${encodeURIComponent(model)}`);
	return response.json();
}

// Transcribe a file: its events, as they come, the first being that it is begun. A full queue is waited for, because other callers end.
export async function* transcribe(file, settings, signal) {
	const form = new FormData();
	const { model, drafter, language, words } = settings;
	const times = { "timestamp_granularities[]": words ? "word" : "segment" };
	const fields = { model, drafter, language, ...times, stream: true, "include[]": "drafts", file };
	for (const name in fields) form.append(name, fields[name]);
	const request = { method: "POST", body: form, signal };
	const response = await whenThereIsRoom(() => ask("v1/audio/transcriptions", request), signal);
	yield { type: "begun" };
	yield* events(response.body);
}

async function whenThereIsRoom(request, signal) {
	for (;;) {
		try {
			return await request();
		} catch (error) {
			if (error.status !== 429) throw error;
			await new Promise((resolve) => setTimeout(resolve, 1000));
			signal.throwIfAborted();
		}
	}
}

// Server-sent events: blocks of lines, of which only `data:` matters here; comments keep the line alive.
async function* events(body) {
	let rest = "";
	for await (const text of texts(body)) {
		const blocks = (rest + text).split("\n\n");
		rest = blocks.pop();
		for (const block of blocks) {
			if (!block.startsWith("data: ")) continue;
			const data = block.slice("data: ".length);
			if (data === "[DONE]") return;
			const event = JSON.parse(data);
			if (event.error) throw new ServerError(event.error);
			yield event;
		}
	}
	throw new ServerError({ message: "the stream ended early" });
}

// Not every browser can iterate over a stream itself.
async function* texts(body) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		yield value;
	}
}

export function openRealtime() {
	const protocols = key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"];
	return new WebSocket(new URL("v1/realtime?intent=transcription", location.href.replace(/^http/, "ws")), protocols);
}
