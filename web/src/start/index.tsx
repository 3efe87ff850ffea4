import { Empty } from "../ui";

export default function StartPage() {
  return <Empty title="Start a run" />;
}
