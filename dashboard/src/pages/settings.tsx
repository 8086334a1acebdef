export default function Page() {
  return <h2>settings</h2>
}
