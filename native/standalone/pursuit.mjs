// Trained encoders in JavaScript, by pursuit.wasm.
//
//     const encoder = await Encoder.load(wasm, model);   // the bytes of pursuit.wasm and of Compiled.flat
//     const codes = encoder.encode(signals);              // Float32Array of rows x features -> rows x size

export class Encoder {
    /** Compile the module and load a model; throws an Error if the model is not valid. */
    static async load(wasm, model) {
        const { instance } = await WebAssembly.instantiate(wasm, {});
        return new Encoder(instance.exports, new Uint8Array(model));
    }

    constructor(functions, model) {
        this.functions = functions;
        functions._initialize();
        const buffer = this.#copy(model);
        this.encoder = functions.pursuit_load(buffer, model.byteLength);
        functions.free(buffer);
        if (this.encoder === 0) throw new Error("the model is not one that Compiled.flat has written");
        this.features = functions.pursuit_features(this.encoder);
        this.size = functions.pursuit_size(this.encoder);
    }

    /** The codes of signals that lie one after the other; throws an Error if one is not finite. */
    encode(signals) {
        const rows = signals.length / this.features;
        if (!Number.isInteger(rows)) {
            throw new Error(`signals have ${this.features} numbers each, got ${signals.length} in all`);
        }
        const { malloc, free, memory, pursuit_encode } = this.functions;
        const x = this.#copy(new Uint8Array(signals.buffer, signals.byteOffset, signals.byteLength));
        const codes = malloc(4 * rows * this.size + 1);
        const finite = pursuit_encode(this.encoder, x, rows, codes);
        // the memory may have grown, so that views of it are made after the call
        const result = new Float32Array(memory.buffer, codes, rows * this.size).slice();
        free(x);
        free(codes);
        if (!finite) throw new Error("a signal is not finite");
        return result;
    }

    #copy(bytes) {
        const address = this.functions.malloc(bytes.byteLength + 1);
        new Uint8Array(this.functions.memory.buffer, address, bytes.byteLength).set(bytes);
        return address;
    }
}
