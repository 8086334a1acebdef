export default function Page() {
  return <h2>schedule</h2>
}
