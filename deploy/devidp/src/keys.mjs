// The provider's keys, in keys.json of the data directory: the newest signing
// key first, the former ones still published, and what signs the cookies.
import { generateKeyPair, randomBytes } from 'node:crypto';
import { promisify } from 'node:util';

import { readJSON, writeJSON } from './files.mjs';

const kept = 4; // signing keys

export class Keys {
  static async open(dir) {
    const keys = new Keys();
    keys.file = `${dir}/keys.json`;
    Object.assign(keys, readJSON(keys.file) ?? { signing: [], cookies: [randomBytes(32).toString('base64url')] });
    if (keys.signing.length === 0) await keys.rotate();
    return keys;
  }

  // rotate makes a new signing key and returns its kid.
  async rotate() {
    const { privateKey } = await promisify(generateKeyPair)('rsa', { modulusLength: 2048 });
    const key = { ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256', kid: randomBytes(8).toString('hex') };
    this.signing = [key, ...this.signing].slice(0, kept);
    writeJSON(this.file, { signing: this.signing, cookies: this.cookies });
    return key.kid;
  }
}
