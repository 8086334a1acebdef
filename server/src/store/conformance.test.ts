import { eachEngine } from '../testing/store/store.ts'
import { conformance } from './conformance.ts'

eachEngine(conformance)
