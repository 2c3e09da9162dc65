// Ranks the units of the book. The build sets UNITS, SYNONYMS and Stemmer before this.
const stemmer = new Stemmer();
const STOP = new Set((
  "a after an and are as at be been before but by can could did do does each else explained for from get gets had has have " +
  "how i if in into is it its just me much my of on one or our should so such than that the their them then there " +
  "tell tells these they thing things this to us use used using was we were what when where which who why will with would you your"
).split(" "));

const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();

// British endings are read as American ones: initialise, initialize, initialization. A tokenizer is
// no token.
const stem = (word) => (/^tokeni[sz]/.test(word) ? "tokenize" : stemmer.stemWord(word.replace(/is(?=(e[ds]?|er|ing|ations?)$)/, "iz")));

// "pre-norm" and "MultiHeadAttention" are found whole, by their parts and by pairs of these; "W_Q"
// only whole.
function names(word) {
  const parts = word.split(/[-_'’]|(?<=\p{Ll})(?=\p{Lu})/u);
  const found = parts.length === 1 ? parts : [parts.join(""), ...parts.filter((part) => part.length > 2)];
  if (parts.length > 2) found.push(...parts.slice(1).map((part, i) => parts[i] + part));
  return found.map(plain).filter((name) => !STOP.has(name));
}

// What means the same shares a term, such as "=3": words by their stem, phrases as they stand.
const squeezed = (text) => plain(text).replace(/\band\b|[-_, \u2060]/g, "");
const groups = new Map();
SYNONYMS.forEach((phrases, i) => phrases.forEach((phrase) => {
  for (const key of new Set([squeezed(phrase), stem(squeezed(phrase))])) groups.set(key, [...(groups.get(key) ?? []), `=${i}`]);
}));
const PHRASE = new RegExp(
  "(?<![\\p{L}\\p{N}])(" +
  SYNONYMS.flat().filter((phrase) => /\W/.test(phrase)).sort((a, b) => b.length - a.length)
    .map((phrase) => phrase.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/[- ]/g, "[-_, \\u2060]{1,4}(?:and )?")).join("|") +
  ")(?:e?s)?(?![\\p{L}\\p{N}])", "giu");
const WORD = /√|(?<= )=(?= )|[\p{L}\p{N}]+(?:[-_'’][\p{L}\p{N}]+)*/gu;

// The words and known phrases of a text: where they stand, the terms they are found by, and those
// that a query with them looks for.
const SPOKEN = new Map([["√", "sqrt"], ["=", "equal"]]);
const known = new Map();
function forms(word) {
  word = SPOKEN.get(word) ?? word;
  const found = names(word);
  const wanted = found.flatMap((name) => [stem(name), ...(groups.get(stem(name)) ?? [])]);
  return { terms: [...new Set([...found, ...wanted])], wanted };
}
function pieces(text) {
  const found = [];
  for (const { 0: word, index: at } of text.matchAll(WORD)) {
    if (!known.has(word)) known.set(word, forms(word));
    found.push({ at, text: word, ...known.get(word) });
  }
  for (const { 0: phrase, 1: base, index: at } of text.matchAll(PHRASE)) {
    const terms = groups.get(squeezed(base));
    found.push({ at, text: phrase, terms, wanted: terms, phrase: true });
  }
  return found;
}
const termsOf = (text) => pieces(text).flatMap((piece) => piece.terms);

// In how many titles and texts a term is.
const spread = new Map();
const rarity = (term) => Math.log(4 * UNITS.length / (spread.get(term) ?? 1));
const index = new MiniSearch({
  fields: ["title", "path", "text", "aside"],
  tokenize(text) {
    const found = termsOf(text);
    for (const term of new Set(found)) spread.set(term, (spread.get(term) ?? 0) + 1);
    return found;
  },
  processTerm: (term) => term,
});
index.addAll(UNITS.map(([, , title, path, text, aside], id) => ({ id, title, path, text, aside })));

// Questions come first among equals; what was measured comes below what is explained.
const WEIGHTS = { question: 1.6, section: 1, term: 1.1, object: 0.8, inner: 0.4, front: 0.4, claim: 0.15, reference: 0.15, ledger: 0.1 };

// A word that the book does not have, nor begins with, is read as the nearest that it has.
function spelled(word) {
  const name = plain(word);
  if (name.length < 5 || STOP.has(name) || names(word).some((part) => spread.has(part) || spread.has(stem(part)))) return word;
  if ([...spread.keys()].some((term) => term.startsWith(name))) return word;
  for (const fuzzy of name.length < 8 ? [1] : [1, 2]) {
    const near = index.autoSuggest(name, { tokenize: () => [name], fuzzy, prefix: false }).flatMap(({ terms }) => terms);
    if (near.length) return near.reduce((a, b) => (spread.get(b) > spread.get(a) ? b : a));
  }
  return word;
}

const letters = (text) => plain(text).replace(/[^\p{L}\p{N}]/gu, "");

// At most 20 results: who has to look further had better type another word.
globalThis.searchBook = function (query, limit) {
  const read = query.replace(WORD, spelled);
  const found = pieces(read);
  const phrases = found.filter((piece) => piece.phrase);
  const words = found.filter(({ at, phrase }) => !phrase && !phrases.some((each) => each.at <= at && at < each.at + each.text.length));
  // Attention is everywhere.
  const all = [...phrases, ...words].map(({ wanted }) => wanted).filter((wanted) => wanted.length);
  const telling = all.filter((wanted) => !wanted.includes(stem("attention")));
  const looked = telling.length ? telling : all;
  const terms = looked.flat();
  // What may still be typed is found by its beginning, unless it was set aside above.
  const typed = names(read.match(WORD)?.at(-1) ?? "")[0];
  const last = terms.includes(stem(typed ?? "")) || !spread.has(typed) ? typed : undefined;
  const hits = index.search(query, {
    tokenize: () => [...new Set([...terms, last])].filter(Boolean),
    boost: { title: 4, path: 2 },
    prefix: (term) => term === last && !spread.has(last),
    weights: { prefix: 0.5 },
    boostTerm: (term) => (term === last && !terms.includes(last) ? 0.4 : 1),
    boostDocument: (id) => WEIGHTS[UNITS[id][1]] * (letters(UNITS[id][2]) === letters(query) ? 5 : 1),
  });
  // What has more of the words comes before what has one of them often.
  const tells = (wanted) => Math.min(...wanted.map(rarity));
  const whole = looked.reduce((sum, wanted) => sum + tells(wanted), 0);
  for (const hit of hits) {
    const has = looked.filter((wanted) => wanted.some((term) => hit.queryTerms.includes(term)));
    if (has.length) hit.score *= (has.reduce((sum, wanted) => sum + tells(wanted), 0) / whole) ** 2;
  }
  hits.sort((a, b) => b.score - a.score);
  const best = hits.filter(({ score }) => score > hits[0].score / 20).slice(0, 20);
  return {
    count: best.length,
    more: hits.length > best.length,
    results: best.slice(0, limit).map(({ id, match }) => {
      const [url, kind, title, path, text] = UNITS[id];
      const found = new Set(Object.keys(match));
      // A question is answered by the first sentence below the heading, or more if that is "No."
      const [shown, told] = kind === "question" ? [answer(text), 0] : sentence(text, found);
      return { url, fragment: told ? fragment(shown) : "", kind, path, title: marked(title, found), excerpt: marked(shown, found) };
    }),
  };
};

const sentences = (text) => text.split("\n").flatMap((paragraph) => paragraph.split(/(?<=[.!?]["”)]?)(?<!\b(?:al|eq)\.)\s+/));

const answer = (text) => sentences(text).reduce((said, each) => (said.length < 12 ? `${said} ${each}` : said));

// The sentence with the rarest of the words looked for, and how much it has of them.
function sentence(text, found) {
  let best = ["", -1];
  for (const each of sentences(text)) {
    let sum = 0;
    for (const term of new Set(termsOf(each))) if (found.has(term)) sum += rarity(term);
    if (sum > best[1] + 1e-9) best = [each, sum];
  }
  return best;
}

// The text in parts: [words, marked?].
function marked(text, found) {
  const hits = pieces(text).filter((piece) => piece.terms.some((term) => found.has(term)));
  const parts = [];
  let end = 0;
  for (const { at, text: words } of hits.sort((a, b) => a.at - b.at)) {
    if (at < end) continue;
    parts.push([text.slice(end, at), false], [words, true]);
    end = at + words.length;
  }
  return [...parts, [text.slice(end), false]].filter(([words]) => words);
}

// The part of an address that makes browsers mark a sentence. Mathematics is drawn, and not found as
// words: named are the words before and after it, or the longest run between.
function fragment(text) {
  const runs = text.split(/\u2060[^\u2060]*\u2060/).map((run) => run.trim());
  const encoded = (run) => encodeURIComponent(run).replace(/-/g, "%2D");
  const enough = (run) => /\S \S/.test(run);
  if (runs.length > 1 && enough(runs[0]) && enough(runs.at(-1))) return `:~:text=${encoded(runs[0])},${encoded(runs.at(-1))}`;
  const longest = runs.reduce((a, b) => (b.length > a.length ? b : a));
  return enough(longest) ? `:~:text=${encoded(longest)}` : "";
}
