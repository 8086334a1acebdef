export default function Page() {
  return <h2>queues</h2>
}
