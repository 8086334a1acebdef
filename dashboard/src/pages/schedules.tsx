export default function Page() {
  return <h2>schedules</h2>
}
