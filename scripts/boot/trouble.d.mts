export class Trouble extends Error {}
