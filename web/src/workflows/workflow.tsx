import { Empty } from "../ui";

export default function WorkflowPage() {
  return <Empty title="Workflow" />;
}
