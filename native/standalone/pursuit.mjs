// Trained encoders in JavaScript, by pursuit.wasm.
//
//     const encoder = await Encoder.load(wasm, model);   // the bytes of pursuit.wasm and of Compiled.flat
//     const codes = encoder.encode(signals);              // Float32Array of rows x features -> rows x size
//
// Causal convolutional encoders take a stream as well, any number of frames at a time:
//
//     const codes = encoder.push(frames);                 // count x frameFeatures -> count x frameSize
//     encoder.restart();                                  // before another stream

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
        this.frameFeatures = functions.pursuit_frame_features(this.encoder);
        this.frameSize = functions.pursuit_frame_size(this.encoder);
    }

    /** The codes of signals that lie one after the other; throws an Error if one is not finite. */
    encode(signals) {
        return this.#run(this.functions.pursuit_encode, "signals", signals, this.features, this.size);
    }

    /** The codes of the next frames of a stream; throws an Error if one is not finite. */
    push(frames) {
        if (this.frameFeatures === 0) throw new Error("only causal convolutional encoders run on streams");
        return this.#run(this.functions.pursuit_push, "frames", frames, this.frameFeatures, this.frameSize);
    }

    /** Begin another stream. */
    restart() {
        this.functions.pursuit_restart(this.encoder);
    }

    #run(encode, name, values, features, size) {
        const rows = values.length / features;
        if (!Number.isInteger(rows)) {
            throw new Error(`${name} have ${features} numbers each, got ${values.length} in all`);
        }
        const { malloc, free, memory } = this.functions;
        const x = this.#copy(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
        const codes = malloc(4 * rows * size + 1);
        const finite = encode(this.encoder, x, rows, codes);
        // the memory may have grown, so that views of it are made after the call
        const result = new Float32Array(memory.buffer, codes, rows * size).slice();
        free(x);
        free(codes);
        if (!finite) throw new Error(`one of the ${name} is not finite`);
        return result;
    }

    #copy(bytes) {
        const address = this.functions.malloc(bytes.byteLength + 1);
        new Uint8Array(this.functions.memory.buffer, address, bytes.byteLength).set(bytes);
        return address;
    }
}
