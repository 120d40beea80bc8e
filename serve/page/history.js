// Transcripts that this browser keeps, with their sound: nothing of it leaves the machine.

const MOST_KEPT = 50;
const MOST_BYTES = 32e6; // of a sound that is kept with its text

// What is kept of a recording; the rest belongs to the page as it is open.
const record = ({ id, name, model, language, duration, segments, drafters, figures, cues }) => ({
	id, name, model, language, duration, segments, drafters, figures, cues,
});

const answer = (request) =>
	new Promise((resolve, reject) => {
		request.onsuccess = () => resolve(request.result);
		request.onerror = () => reject(request.error);
	});

let opened;

function stores(mode) {
	if (!opened) {
		const request = indexedDB.open("specedge", 1);
		request.onupgradeneeded = () => ["texts", "files"].forEach((name) => request.result.createObjectStore(name));
		opened = answer(request);
	}
	return opened.then((base) => ["texts", "files"].map((name) => base.transaction(name, mode).objectStore(name)));
}

// The newest first; none where the browser keeps nothing, as some do in a private window.
export async function kept() {
	const [texts] = await stores("readonly").catch(() => []);
	return texts ? (await answer(texts.getAll())).reverse() : [];
}

export async function fileOf({ id }) {
	const [, files] = await stores("readonly");
	return answer(files.get(id));
}

// The text alone is kept where there is no room for the sound.
export async function keep(item, hasNewFile = false) {
	try {
		const [texts] = await stores("readwrite");
		await answer(texts.put(record(item), item.id));
		for (const id of (await answer(texts.getAllKeys())).slice(0, -MOST_KEPT)) forget({ id });
		if (hasNewFile && item.file.size <= MOST_BYTES) await answer((await stores("readwrite"))[1].put(item.file, item.id));
	} catch (error) {
		console.warn("not kept:", error);
	}
}

export async function forget({ id }) {
	for (const store of await stores("readwrite").catch(() => [])) store.delete(id);
}

export async function forgetAll() {
	for (const store of await stores("readwrite").catch(() => [])) store.clear();
}
