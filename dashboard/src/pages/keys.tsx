export default function Page() {
  return <h2>keys</h2>
}
