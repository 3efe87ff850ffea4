import { Empty } from "../ui";

export default function DeadLettersPage() {
  return <Empty title="Dead letters" />;
}
