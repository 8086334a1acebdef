import './locale.ts'
import './style/base.css'
import './style/parts.css'
import './style/states.css'
import './style/pages.css'
import './style/small.css'
import { QueryClientProvider } from '@tanstack/preact-query'
import { render } from 'preact'
import { Router } from 'wouter-preact'
import { App } from './app.tsx'
import { BASE_PATH } from './server/call.ts'
import { queryClient } from './server/queries.ts'

const place = document.getElementById('app')
if (place === null) throw new Error('The page has no place for the dashboard')
render(
  <QueryClientProvider client={queryClient}>
    <Router base={BASE_PATH}>
      <App />
    </Router>
  </QueryClientProvider>,
  place,
)
