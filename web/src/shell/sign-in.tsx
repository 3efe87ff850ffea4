import { Empty } from "../ui";

export default function SignIn() {
  return <Empty title="Sign in" />;
}
