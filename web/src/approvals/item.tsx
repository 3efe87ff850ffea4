import { Empty } from "../ui";

export default function ApprovalPage() {
  return <Empty title="Approval" />;
}
