attnbookFigures.compute.rotary = ({ position, distance, kind }, { curves }, { range }) => {
  const base = kind === "small" ? 1000 : 10000, back = kind === "three" ? 3 : 1;
  const speeds = [1, base ** -0.125], curve = curves[kind];
  const similar = range(65).map((k) => (Math.cos(k - back) + Math.cos((k - back) * speeds[1])) / 2);
  const friends = range(64).filter((k) => k > 15 && similar[k] > Math.max(0.75, similar[k - 1], similar[k + 1]));
  const angles = [0, distance, back].flatMap((turn) => speeds.map((speed) => position * speed + turn * speed));
  const friend = friends.includes(distance);
  return {
    friends, friend, curve,
    sines: angles.map(Math.sin),
    cosines: angles.map(Math.cos),
    query: position + distance,
    likeness: similar[distance],
    listed: friends.join(", "),
    asked: back === 1 ? "one back" : "three back",
    across: curve.map((_, i) => 64 - curve.length + i),
    case: friend ? 3 : distance === back ? 2 : Number(distance >= 16),
  };
};
