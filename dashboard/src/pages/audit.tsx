export default function Page() {
  return <h2>audit</h2>
}
