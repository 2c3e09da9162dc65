attnbookFigures.compute.rotary = ({ base, back }, { curves }, { range, sum }) => {
  const longest = 64, most = 5;
  const likeness = (base, back) => range(longest).map((i) =>
    sum([0, 1].map((m) => Math.cos((i + 1 - back) * base ** (-m / 8)))) / 2);
  const friendsAmong = (similar) => range(longest)
    .filter((k) => k >= 16 && similar[k - 1] > Math.max(0.75, similar[k - 2], similar[k]));
  const similar = likeness(base, +back), friends = friendsAmong(similar);
  const on = [[10000, "1"], [1000, "1"], [10000, "3"]].map(([b, k]) => b === base && k === back);
  return {
    similar, friends, on, curves,
    heights: similar.map((s) => Math.max(0, s)),
    peaks: range(most).map((i) => friends[i] ?? 0),
    has: range(most).map((i) => i < friends.length),
    fell: range(most).map((i) => i < friends.length && on.includes(true)),
    friendly: range(longest).map((i) => friends.includes(i + 1)),
    listed: friends.join(", "),
    asked: { 1: "one back", 3: "three back" }[back],
    unknown: !on.includes(true),
    case: on.includes(true) ? "measured" : "unknown",
  };
};
