import { Argument, type Command } from 'commander'
import { outText } from '../output/terminal.ts'

const SHELLS = ['bash'] as const

export function addCompletion(program: Command): void {
  program
    .command('completion')
    .description('print a script that completes commands and flags; source it in your shell')
    .addArgument(new Argument('<shell>').choices(SHELLS))
    .action(() => outText(bashScript(program)))
}

interface Place {
  /** The words of the command, each with a space before it. */
  path: string
  /** The words that can follow. */
  words: readonly string[]
}

/** Every command with the words that can follow it, so that the script has what the program has. */
function placesOf(command: Command, path = ''): Place[] {
  const inner = command.commands.filter((one) => !isHidden(one))
  const flags = command.options.flatMap(({ long }) => (long == null ? [] : [long]))
  const choices = command.registeredArguments.flatMap(({ argChoices = [] }) => argChoices)
  const words = [...inner.map((one) => one.name()), ...choices, ...flags, '--help']
  return [{ path, words }, ...inner.flatMap((one) => placesOf(one, `${path} ${one.name()}`))]
}

const isHidden = (command: Command) => '_hidden' in command && command._hidden === true

function bashScript(program: Command): string {
  const places = placesOf(program)
  const known = places.filter(({ path }) => path !== '').map(({ path }) => `'${path}'`)
  const cases = places.map(({ path, words }) => `    '${path}') words='${words.join(' ')}' ;;`)
  return `# Completion of ichido for bash: source <(ichido completion bash)
_ichido() {
  local path='' words='' word
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$path $word" in
      ${known.join('|')}) path="$path $word" ;;
    esac
  done
  case "$path" in
${cases.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _ichido ichido
`
}
