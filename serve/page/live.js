// Live text as segments like those of a file.

// A confirmed text: its passes are counted anew from 0. start, end: seconds.
export function partOf({ item_id, text, tokens }, start, end) {
	const numbers = [...new Set(tokens.map(({ pass }) => pass))];
	const passes = numbers.map((number) => {
		const drafted = tokens.filter(({ pass, by }) => pass === number && by);
		return { drafter: drafted[0]?.by ?? null, accepted: drafted.length };
	});
	return { item: item_id, start, end, text, passes, tokens: tokens.map((token) => ({ ...token, pass: numbers.indexOf(token.pass) })) };
}

// Put a part behind a segment.
export function extend(segment, { text, end, tokens, passes }) {
	segment.text += text;
	segment.end = end;
	segment.tokens.push(...tokens.map((token) => ({ ...token, pass: token.pass + segment.passes.length })));
	segment.passes.push(...passes);
}
