export default function Page() {
  return <h2>alerts</h2>
}
