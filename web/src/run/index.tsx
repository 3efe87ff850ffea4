import { Empty } from "../ui";

export default function RunPage() {
  return <Empty title="Run" />;
}
