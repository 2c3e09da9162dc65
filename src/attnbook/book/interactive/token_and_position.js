attnbookFigures.compute.token_and_position = ({ d, table, scaled }, { parts, v, measured }, { sum }) => {
  const size = { small: d ** -0.5, gpt2: 0.02, unit: 1 }[table] * (scaled ? Math.sqrt(d) : 1);
  const share = size ** 2 / (size ** 2 + v[d]);
  const numbers = parts[d].map((x) => x / 1000), n = 16;
  const means = numbers.map((_, i) => (i % n ? 0 : sum(numbers.slice(i, i + n)) / n));
  const part = (which, i) => {
    const at = which * n * n + i;
    return numbers[at] - means[at - (at % n)];
  };
  const whole = [], mine = [];
  for (let i = 0; i < n * n; i++) {
    const word = size ** 2 * part(0, i) + size * part(2, i);
    const position = size * part(1, i) + part(3, i);
    whole.push(Math.abs(word + position));
    mine.push(Math.abs(word) > Math.abs(position));
  }
  const most = Math.max(...whole), larger = Math.max(size, Math.SQRT1_2);
  return {
    size, share, mine, measured,
    percent: 100 * share,
    word_bar: size / larger,
    position_bar: Math.SQRT1_2 / larger,
    strength: whole.map((x) => Math.sqrt(x / most)),
    n_words: sum(mine.map(Number)),
    case: sum([0.05, 0.2, 0.8, 0.97].map((most) => +(share >= most))),
  };
};
