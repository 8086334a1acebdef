import { eachEngine } from '../testing/store.ts'
import { conformance } from './conformance.ts'

eachEngine(conformance)
