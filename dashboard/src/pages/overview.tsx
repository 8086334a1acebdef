export default function Page() {
  return <h2>overview</h2>
}
