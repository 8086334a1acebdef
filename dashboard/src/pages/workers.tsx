export default function Page() {
  return <h2>workers</h2>
}
