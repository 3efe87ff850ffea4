import { Empty } from "../ui";

export default function RunsPage() {
  return <Empty title="Runs" />;
}
