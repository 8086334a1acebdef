export default function Page() {
  return <h2>job</h2>
}
