export default function Page() {
  return <h2>tokens</h2>
}
