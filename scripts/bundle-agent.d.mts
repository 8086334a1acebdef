export declare function bundleAgent(): Promise<string>
