export default function Page() {
  return <h2>dead-letters</h2>
}
