// What agents spend: money first, or tokens where no price is known; the rest on hover.

export interface Spending {
  calls: number;
  tokens: number;
  cached_tokens: number;
  cost: number;
}

const count = (value: number): string => value.toLocaleString();

/** "$0.0033", "$0.241", "$12.50". */
export const money = (value: number): string => `$${value < 0.01 ? value.toPrecision(2) : value.toFixed(value < 1 ? 3 : 2)}`;

/** "735 tokens, 120 of them cached (16 %)". */
export function tokenWords({ tokens, cached_tokens }: Pick<Spending, "tokens" | "cached_tokens">): string {
  const cached = cached_tokens > 0 ? `, ${count(cached_tokens)} of them cached (${Math.round((100 * cached_tokens) / Math.max(1, tokens))} %)` : "";
  return `${count(tokens)} tokens${cached}`;
}

export function Spent({ spent, className }: { spent: Spending; className?: string }) {
  if (spent.calls === 0) return null;
  const calls = `${count(spent.calls)} model ${spent.calls === 1 ? "call" : "calls"}, ${tokenWords(spent)}`;
  return (
    <span className={`numbers ${className ?? ""}`} title={spent.cost > 0 ? `${calls}, ${money(spent.cost)}` : `${calls}, price unknown`}>
      {spent.cost > 0 ? money(spent.cost) : `${count(spent.tokens)} tokens`}
    </span>
  );
}
