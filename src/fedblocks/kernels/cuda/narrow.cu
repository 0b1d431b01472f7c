// Convolutions with few filters, for all clients of a stack in one launch; every client has filters of its own.
//
// A thread keeps 2 x 2 outputs of all filters in registers, so that each pixel and each weight it loads serves many
// multiplications. With POOL the 2 x 2 outputs are a pooling window: only the largest is written, and a byte that
// says which it was; if it is `rectified` too, that byte is -1 where nothing gets through.
//
// Known when it is compiled: C channels, F filters of KS x KS, images of H x W padded by PAD; POOL; BACKWARDS, whether
// `input_gradient` is there, which has to fit into shared memory, too; THREADS of a block of `forward` and
// `input_gradient`; STRIP, the output rows that a block of `weight_gradient` keeps in shared memory at a time; GROUPS, how
// many of them it works on at once; FB, the filters of a thread there, which divide F; TASKS, at least C * KS + 1.

#define OH (H + 2 * PAD - KS + 1)
#define OW (W + 2 * PAD - KS + 1)
#define K (C * KS * KS)
#define SPAN (KS + 1)  // pixels a side that 2 x 2 outputs depend on
#define PH (OH / 2)    // pooled
#define PW (OW / 2)
#define PADDED(n) (((n) + 3) / 4 * 4)  // filters lie in fours, which are loaded at once
#define FP PADDED(F)
#define CP PADDED(C)

__device__ inline void loaded(float* to, const float* from, const int count) {
#pragma unroll
    for (int i = 0; i < count / 4; i++) {
        const float4 four = reinterpret_cast<const float4*>(from)[i];
        to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
    }
}

// x [clients, B, C, H, W], clients `stride` apart (0: they share it); w [clients, F, K]; bias [clients, F] if `biased`
// -> y [clients, B, F, OH, OW], or with POOL y and winner [clients, B, F, PH, PW]
extern "C" __global__ void __launch_bounds__(THREADS) forward(
    const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
    float* __restrict__ y, signed char* __restrict__ winner,
    const int biased, const int rectified, const int stride, const int B)
{
    constexpr int TH = POOL ? PH : (OH + 1) / 2, TW = POOL ? PW : (OW + 1) / 2;
    __shared__ __align__(16) float filters[K * FP];
    const long long g = blockIdx.y;
    for (int i = threadIdx.x; i < K * FP; i += THREADS) {
        const int f = i % FP, k = i / FP;
        filters[i] = f < F ? w[(g * F + f) * K + k] : 0.f;
    }
    __syncthreads();
    const int at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= B * TH * TW) return;
    const int b = at / (TH * TW), ty = at % (TH * TW) / TW, tx = at % TW;
    const float* image = x + g * stride + static_cast<long long>(b) * C * H * W;
    float sum[4][FP] = {};
#pragma unroll 1
    for (int c = 0; c < C; c++) {
        float patch[SPAN][SPAN];
        if (PAD == 0 && SPAN % 2 == 0 && W % 2 == 0 && (POOL || (OH % 2 == 0 && OW % 2 == 0))) {  // pairs, all inside
#pragma unroll
            for (int p = 0; p < SPAN; p++)
#pragma unroll
                for (int q = 0; q < SPAN; q += 2) {
                    const float* from = image + (c * H + 2 * ty + p) * W + 2 * tx + q;
                    const float2 pair = __ldg(reinterpret_cast<const float2*>(from));
                    patch[p][q] = pair.x, patch[p][q + 1] = pair.y;
                }
        } else {
#pragma unroll
            for (int p = 0; p < SPAN; p++)
#pragma unroll
                for (int q = 0; q < SPAN; q++) {
                    const int iy = 2 * ty + p - PAD, ix = 2 * tx + q - PAD;
                    const bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
                    patch[p][q] = inside ? __ldg(image + (c * H + iy) * W + ix) : 0.f;
                }
        }
#pragma unroll
        for (int k = 0; k < KS * KS; k++) {
            float weights[FP];
            loaded(weights, filters + (c * KS * KS + k) * FP, FP);
#pragma unroll
            for (int f = 0; f < F; f++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[j][f] += weights[f] * patch[k / KS + j / 2][k % KS + j % 2];
        }
    }
#pragma unroll
    for (int f = 0; f < F; f++) {
        const float shift = biased ? bias[g * F + f] : 0.f;
        const long long plane = (g * B + b) * F + f;
        if (POOL) {
            float best = sum[0][f] + shift;
            int which = 0;
#pragma unroll
            for (int j = 1; j < 4; j++) {
                const float value = sum[j][f] + shift;
                if (value > best || value != value) best = value, which = j;  // the first of equals; no number goes through
            }
            if (rectified && best <= 0.f) best = 0.f, which = -1;
            y[(plane * PH + ty) * PW + tx] = best;
            winner[(plane * PH + ty) * PW + tx] = which;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int oy = 2 * ty + j / 2, ox = 2 * tx + j % 2;
                if (oy < OH && ox < OW) y[(plane * OH + oy) * OW + ox] = sum[j][f] + shift;
            }
        }
    }
}

#if BACKWARDS
// What one output pixel sends back: with POOL the slope of its window if it won there.
__device__ inline float slope(const float* dy, const signed char* winner, const int oy, const int ox)
{
    if (oy < 0 || oy >= OH || ox < 0 || ox >= OW) return 0.f;
    if (!POOL) return __ldg(dy + oy * OW + ox);
    if (oy / 2 >= PH || ox / 2 >= PW) return 0.f;
    const int at = oy / 2 * PW + ox / 2;
    return winner[at] == oy % 2 * 2 + ox % 2 ? __ldg(dy + at) : 0.f;
}

#define FIRST (PAD - (KS - 1))
#define WHOLE (POOL && FIRST % 2 == 0 && SPAN % 2 == 0)  // 2 x 2 inputs sent something to whole windows only
#define SIDE (SPAN / 2)

// dy [clients, B, F, OH, OW], or with POOL dy and winner [clients, B, F, PH, PW]; w as above -> dx [clients, B, C, H, W]
extern "C" __global__ void __launch_bounds__(THREADS) input_gradient(
    const float* __restrict__ dy, const signed char* __restrict__ winner, const float* __restrict__ w,
    float* __restrict__ dx, const int B)
{
    constexpr int TH = (H + 1) / 2, TW = (W + 1) / 2, CELLS = POOL ? PH * PW : OH * OW;
    __shared__ __align__(16) float filters[F * KS * KS * CP];
    const long long g = blockIdx.y;
    for (int i = threadIdx.x; i < F * KS * KS * CP; i += THREADS) {
        const int c = i % CP, k = i / CP % (KS * KS), f = i / CP / (KS * KS);
        filters[i] = c < C ? w[(g * F + f) * K + c * KS * KS + k] : 0.f;
    }
    __syncthreads();
    const int at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= B * TH * TW) return;
    const int b = at / (TH * TW), ty = at % (TH * TW) / TW, tx = at % TW;
    const float* slopes = dy + (g * B + b) * F * CELLS;
    const signed char* winners = winner + (g * B + b) * F * CELLS;
    float sum[4][CP] = {};
#pragma unroll 1
    for (int f = 0; f < F; f++) {
        float patch[SPAN][SPAN];
        if (WHOLE) {
#pragma unroll
            for (int i = 0; i < SIDE * SIDE; i++) {
                const int py = ty + FIRST / 2 + i / SIDE, px = tx + FIRST / 2 + i % SIDE;
                const bool inside = py >= 0 && py < PH && px >= 0 && px < PW;
                const float value = inside ? __ldg(slopes + f * CELLS + py * PW + px) : 0.f;
                const int which = inside ? winners[f * CELLS + py * PW + px] : -1;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    patch[i / SIDE * 2 + j / 2][i % SIDE * 2 + j % 2] = which == j ? value : 0.f;
            }
        } else {
#pragma unroll
            for (int i = 0; i < SPAN * SPAN; i++) {
                const int p = i / SPAN, q = i % SPAN;
                const int oy = 2 * ty + FIRST + p, ox = 2 * tx + FIRST + q;
                patch[p][q] = slope(slopes + f * CELLS, winners + f * CELLS, oy, ox);
            }
        }
#pragma unroll
        for (int k = 0; k < KS * KS; k++) {
            float weights[CP];
            loaded(weights, filters + (f * KS * KS + k) * CP, CP);
#pragma unroll
            for (int c = 0; c < C; c++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[j][c] += weights[c] * patch[j / 2 + KS - 1 - k / KS][j % 2 + KS - 1 - k % KS];
        }
    }
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int iy = 2 * ty + j / 2, ix = 2 * tx + j % 2;
            if (iy < H && ix < W) dx[(((g * B + b) * C + c) * H + iy) * W + ix] = sum[j][c];
        }
}

#endif

// x and dy as above -> dw [blocks, clients, F, K] and db [blocks, clients, F]: sums over each block's strips of images.
// A thread is one row of FB filters (of one channel and height) and adds up its KS weights over rows of a strip.
// One more row, of ones, gives the biases; what TASKS has beyond that only fills warps.
#define PARTS (F / FB)
#define BLOCK (TASKS * PARTS * GROUPS)
#define STRIPS ((OH + STRIP - 1) / STRIP)
#define TALL (STRIP + KS - 1)
#define WIDE (W + 2 * PAD)
#define ROW (WIDE | 1)  // odd, so that rows begin in different banks
#define PLANE (TALL * ROW + (KS + 32 - TALL * ROW % 32) % 32)  // and so do channels
#define FBP PADDED(FB)
#define PIXELS (PAD == 0 && W % 4 == 0 ? 4 : PAD == 0 && W % 2 == 0 ? 2 : 1)  // that are loaded at once

struct alignas(4 * PIXELS) Pixels { float value[PIXELS]; };

extern "C" __global__ void __launch_bounds__(BLOCK) weight_gradient(
    const float* __restrict__ x, const float* __restrict__ dy, const signed char* __restrict__ winner,
    float* __restrict__ dw, float* __restrict__ db, const int stride, const int B, const int share)
{
    __shared__ __align__(16) float slopes[STRIP * OW * PARTS * FBP];
    __shared__ float image[C * PLANE + OW + KS - 1], total[KS * F * TASKS];
    const long long g = blockIdx.y;
    const int task = threadIdx.x % TASKS, part = threadIdx.x / TASKS % PARTS, group = threadIdx.x / (TASKS * PARTS);
    for (int i = threadIdx.x; i < STRIP * OW * PARTS * FBP; i += BLOCK) slopes[i] = 0.f;
    for (int i = threadIdx.x; i < OW + KS - 1; i += BLOCK) image[C * PLANE + i] = 1.f;
    float sum[KS][FB] = {};
    const int last = min(B * STRIPS, static_cast<int>(blockIdx.x + 1) * share);
    for (int unit = blockIdx.x * share; unit < last; unit++) {
        const int b = unit / STRIPS, top = unit % STRIPS * STRIP, rows = min(STRIP, OH - top);
        __syncthreads();
        const float* from = x + g * stride + static_cast<long long>(b) * C * H * W;
        for (int i = threadIdx.x; i < C * TALL * (WIDE / PIXELS); i += BLOCK) {
            const int c = i / (TALL * (WIDE / PIXELS)), r = i / (WIDE / PIXELS) % TALL, q = i % (WIDE / PIXELS) * PIXELS;
            const int iy = top + r - PAD, ix = q - PAD;
            const bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
            Pixels found = {};
            if (inside) found = *reinterpret_cast<const Pixels*>(from + (c * H + iy) * W + ix);
#pragma unroll
            for (int p = 0; p < PIXELS; p++) image[c * PLANE + r * ROW + q + p] = found.value[p];
        }
        constexpr int CELLS = POOL ? PH * PW : OH * OW;
        const float* up = dy + (g * B + b) * F * CELLS + (POOL ? top / 2 * PW : top * OW);
        const signed char* won = winner + (g * B + b) * F * CELLS + top / 2 * PW;
        for (int i = threadIdx.x; i < F * (POOL ? rows / 2 * PW : rows * OW); i += BLOCK) {
            const int f = i % F, cell = i / F, column = f / FB * FBP + f % FB;
            const float value = __ldg(up + f * CELLS + cell);
            if (POOL) {
                const int which = won[f * CELLS + cell], corner = cell / PW * 2 * OW + cell % PW * 2;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    slopes[(corner + j / 2 * OW + j % 2) * PARTS * FBP + column] = which == j ? value : 0.f;
            } else {
                slopes[cell * PARTS * FBP + column] = value;
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int r = group; r < rows; r += GROUPS) {
            const float* row = image + (task < C * KS ? task / KS * PLANE + (r + task % KS) * ROW : C * PLANE);
            const float* each = slopes + (r * OW * PARTS + part) * FBP;
            float window[KS];
#pragma unroll
            for (int q = 0; q < KS - 1; q++) window[q] = row[q];
#pragma unroll 1
            for (int left = 0; left < OW; left += KS) {
#pragma unroll
                for (int i = 0; i < KS; i++) {
                    if (left + i < OW) {
                        float now[FBP];
                        loaded(now, each + (left + i) * PARTS * FBP, FBP);
                        window[(i + KS - 1) % KS] = row[left + i + KS - 1];
#pragma unroll
                        for (int kx = 0; kx < KS; kx++)
#pragma unroll
                            for (int f = 0; f < FB; f++) sum[kx][f] += window[(i + kx) % KS] * now[f];
                    }
                }
            }
        }
    }
    for (int turn = 0; turn < GROUPS; turn++) {  // one group after another: the same order every time
        __syncthreads();
        if (group == turn)
#pragma unroll
            for (int i = 0; i < KS * FB; i++) {
                float* to = total + (i / FB * F + part * FB + i % FB) * TASKS + task;
                *to = (turn == 0 ? 0.f : *to) + sum[i / FB][i % FB];
            }
    }
    __syncthreads();
    const long long block = blockIdx.x * static_cast<long long>(gridDim.y) + g;
    for (int i = threadIdx.x; i < F * K; i += BLOCK)
        dw[block * F * K + i] = total[(i % KS * F + i / K) * TASKS + i % K / KS];
    for (int f = threadIdx.x; f < F; f += BLOCK) db[block * F + f] = total[f * TASKS + C * KS];
}
