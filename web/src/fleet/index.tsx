import { Empty } from "../ui";

export default function WorkersPage() {
  return <Empty title="Workers and queues" />;
}
