import { Empty } from "../ui";

export default function DecidePage() {
  return <Empty title="Decide" />;
}
