import { Empty } from "../ui";

export default function ApprovalsPage() {
  return <Empty title="Approvals" />;
}
