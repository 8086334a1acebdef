export default function Page() {
  return <h2>users</h2>
}
