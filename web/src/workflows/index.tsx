import { Empty } from "../ui";

export default function WorkflowsPage() {
  return <Empty title="Workflows" />;
}
